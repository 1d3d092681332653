//! Implements the system calls that send and receive: `sendto`, `sendmsg`, `recvfrom`, `recvmsg`
//! and the like; and reads and writes of sockets.

use super::socket::{read_address, resolve, sender, write_address};
use super::transfer::TransferWaits;
use super::{Answer, file};
use crate::files::user::UserBytes;
use crate::mem::{now_ns, payer, uaccess};
use crate::task::Thread;
use crate::task::process;
use crate::task::signal;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::{general as abi, net};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::io::{Limited, Waits};
use vellum_kernel::fs::{Open, Sink, Source};
use vellum_kernel::net::address::UNIX;
use vellum_kernel::net::message::{Cargo, Control, ControlWriter, Identity, Outgoing};
use vellum_kernel::net::packet::Wanted;
use vellum_kernel::net::rights::{Rights, Sender};
use vellum_kernel::net::{Receive, Socket, socket_of};

/// The most bytes of a stream that are moved before other tasks may run.
const CHUNK: usize = 64 << 10;
/// The longest control messages that are read, in bytes.
const LONGEST_CONTROL: u64 = 20 << 10;
/// The most messages of one `sendmmsg` or `recvmmsg` (`UIO_MAXIOV`).
const MOST_MESSAGES: u64 = 1024;

/// Calls `attempt` until it returns something other than `EAGAIN`, and waits at the socket's queue
/// in between, no longer than its timeout to send or to receive. With `O_NONBLOCK`, or with
/// `MSG_DONTWAIT` in `flags`, calls it once.
///
/// # Errors
///
/// `EAGAIN`, also at the timeout; `EINTR`; those of `attempt`.
pub async fn retry<T>(
    thread: &Arc<Thread>,
    open: &Open,
    flags: u32,
    sends: bool,
    mut attempt: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let common = socket_of(open)?.transport().common();
    if open.flags() & abi::O_NONBLOCK != 0 || flags & net::MSG_DONTWAIT != 0 {
        return attempt();
    }
    let first = attempt();
    if !matches!(first, Err(Errno::EAGAIN)) {
        return first;
    }
    let deadline = common.options.timeout(sends).map(|timeout| thread.wait_until(now_ns().saturating_add(timeout)));
    let attempt = || match attempt() {
        Err(Errno::EAGAIN) => None,
        result => Some(result),
    };
    match thread.interruptible(common.changed.wait_until(attempt), deadline).await {
        Ok(result) => result,
        Err(Errno::ETIMEDOUT) => Err(Errno::EAGAIN),
        Err(error) => Err(error),
    }
}

/// Copies all that is left of `from` to kernel memory.
async fn gather(thread: &Arc<Thread>, from: &mut dyn Source) -> Result<Vec<u8>, Errno> {
    let mut bytes = payer::zeros(from.left())?;
    let mut done = 0;
    while done < bytes.len() {
        match from.take(&mut bytes[done..]) {
            Ok(taken) => done += taken,
            Err(_) if TransferWaits(thread).wait().await => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Copies as many bytes as have room to `to`, and returns their number.
async fn scatter(thread: &Arc<Thread>, bytes: &[u8], to: &mut dyn Sink) -> Result<usize, Errno> {
    let count = bytes.len().min(to.room());
    let mut done = 0;
    while done < count {
        match to.put(&bytes[done..count]) {
            Ok(put) => done += put,
            Err(_) if TransferWaits(thread).wait().await => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// Sends bytes, as one message if the socket has messages. Returns their number.
///
/// # Errors
///
/// Those of [`vellum_kernel::net::Transport::send`]; `EAGAIN`, `EINTR`, `EFAULT`, `ENOMEM`.
pub async fn send(
    thread: &Arc<Thread>,
    open: &Open,
    from: &mut dyn Source,
    mut with: Outgoing<'_>,
    flags: u32,
) -> Result<usize, Errno> {
    let transport = socket_of(open)?.transport();
    let common = transport.common();
    if flags & net::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if common.kind.has_messages() {
        let len = from.left();
        if len > common.options.send_buffer() {
            return Err(Errno::EMSGSIZE);
        }
        let mut bytes = gather(thread, from).await?;
        let sent = retry(thread, open, flags, true, || transport.clone().send_message(&mut bytes, &mut with)).await;
        return sent.map(|()| len);
    }
    let (mut done, waits) = (0, TransferWaits(thread));
    loop {
        let mut chunk = Limited(&mut *from, CHUNK);
        match retry(thread, open, flags, true, || transport.send(&mut chunk, &mut with)).await {
            Ok(sent) => done += sent,
            Err(Errno::EFAULT | Errno::ENOMEM) if waits.wait().await => {}
            Err(_) if done > 0 => return Ok(done),
            Err(error) => {
                if error == Errno::EPIPE && flags & net::MSG_NOSIGNAL == 0 {
                    signal::send_to(thread, signal::info_from(abi::SIGPIPE, abi::SI_USER as i32, thread));
                }
                return Err(error);
            }
        }
        if from.left() == 0 {
            return Ok(done);
        }
        waits.pause().await;
    }
}

/// The bytes that a call received.
#[derive(Default)]
pub struct Received {
    /// The number of bytes that were copied.
    pub count: usize,
    /// The length of the message, which may be more.
    pub len: usize,
    /// The cargo that came with them.
    pub cargo: Cargo,
}

/// Receives bytes, of one message if the socket has messages.
///
/// # Errors
///
/// Those of [`vellum_kernel::net::Transport::receive`]; `EINTR`, `EFAULT`, `ENOMEM`.
pub async fn receive(thread: &Arc<Thread>, open: &Open, to: &mut dyn Sink, flags: u32) -> Result<Received, Errno> {
    let transport = socket_of(open)?.transport();
    let how = Receive { peeks: flags & net::MSG_PEEK != 0 };
    if flags & net::MSG_OOB != 0 {
        return Err(if transport.common().kind.has_messages() { Errno::EOPNOTSUPP } else { Errno::EINVAL });
    }
    // No error is queued: those of a socket are returned by its calls.
    if flags & net::MSG_ERRQUEUE != 0 && transport.common().domain != UNIX {
        return Err(Errno::EAGAIN);
    }
    if transport.common().kind.has_messages() {
        let message = retry(thread, open, flags, false, || transport.receive_message(how)).await?;
        let count = scatter(thread, &message.bytes, to).await?;
        return Ok(Received { count, len: message.bytes.len(), cargo: message.cargo });
    }
    let (mut all, waits) = (Received::default(), TransferWaits(thread));
    let fills = flags & net::MSG_WAITALL != 0 && !how.peeks;
    loop {
        let waits_here = if all.count == 0 || fills { flags } else { flags | net::MSG_DONTWAIT };
        let mut chunk = Limited(&mut *to, if how.peeks { usize::MAX } else { CHUNK });
        let (wanted, mut attempt) = (chunk.room(), || transport.receive(&mut chunk, how));
        let received = retry(thread, open, waits_here, false, &mut attempt).await;
        let (count, cargo) = match received {
            Ok(received) => received,
            Err(Errno::EFAULT | Errno::ENOMEM) if waits.wait().await => continue,
            Err(_) if all.count > 0 => return Ok(all),
            Err(error) => return Err(error),
        };
        let is_last = cargo.rights.is_some() || count == 0 || how.peeks;
        if all.count == 0 || cargo.rights.is_some() {
            all.cargo = cargo;
        }
        all.count += count;
        all.len = all.count;
        if is_last || to.room() == 0 || !fills && count < wanted {
            return Ok(all);
        }
        waits.pause().await;
    }
}

/// Returns what goes with bytes that have neither an address nor control messages.
pub const fn plain(who: Identity) -> Outgoing<'static> {
    Outgoing { to: None, who, rights: None, header: Wanted { hops: None, class: None } }
}

/// Implements `sendto`.
pub async fn sendto(thread: &Arc<Thread>, [fd, at, len, flags, address, address_len]: [u64; 6]) -> Answer {
    let (open, who) = sender(thread, fd)?;
    let mut bytes = UserBytes::one(thread, at, len);
    let to = (address != 0).then(|| resolve(thread, read_address(thread, socket_of(&open)?, address, address_len)?));
    let to = to.transpose()?;
    let with = Outgoing { to: to.as_ref(), ..plain(who) };
    send(thread, &open, &mut bytes, with, flags as u32).await.map(|sent| sent as u64)
}

/// Implements `recvfrom`.
pub async fn recvfrom(thread: &Arc<Thread>, [fd, at, len, flags, address, address_len]: [u64; 6]) -> Answer {
    let (open, flags) = (file::open_of(thread, fd)?, flags as u32);
    let mut bytes = UserBytes::one(thread, at, len);
    let received = receive(thread, &open, &mut bytes, flags).await?;
    if address != 0 {
        match &received.cargo.from {
            Some(from) => {
                let domain = socket_of(&open)?.transport().common().domain;
                write_address(thread, domain, from, [address, address_len])?;
            }
            None => {
                let mut room = [0; 4];
                uaccess::read(&thread.memory(), address_len, &mut room)?;
                if i32::from_le_bytes(room) < 0 {
                    return Err(Errno::EINVAL);
                }
                uaccess::write(&thread.memory(), address_len, &[0; 4])?;
            }
        }
    }
    Ok(if flags & net::MSG_TRUNC != 0 { received.len } else { received.count } as u64)
}

/// The fields of a `struct msghdr`.
struct Header {
    name: u64,
    name_len: u32,
    pieces: u64,
    count: u64,
    control: u64,
    control_len: u64,
}

/// The places of the fields of a `struct msghdr` that `recvmsg` writes, and its size in bytes.
const NAME_LEN: u64 = 8;
const CONTROL_LEN: u64 = 40;
const FLAGS: u64 = 48;
const HEADER: usize = 56;

impl Header {
    fn read(thread: &Thread, at: u64) -> Result<Header, Errno> {
        let mut bytes = [0; HEADER];
        uaccess::read(&thread.memory(), at, &mut bytes)?;
        let word = |index: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[index * 8 + i]));
        let name_len = word(1) as u32;
        if name_len as i32 <= -1 {
            return Err(Errno::EINVAL);
        }
        let [name, pieces, count, control, control_len] = [0, 2, 3, 4, 5].map(word);
        if count > 1024 {
            return Err(Errno::EMSGSIZE);
        }
        Ok(Header { name, name_len, pieces, count, control, control_len })
    }
}

/// Checks that the thread may send under the identity that it names.
///
/// # Errors
///
/// `EPERM`; `ESRCH`: no such process.
fn check_identity(thread: &Thread, who: Identity) -> Result<(), Errno> {
    let own = thread.credentials();
    let others_pid = who.pid != thread.process.pid;
    if others_pid && !own.has(abi::CAP_SYS_ADMIN)
        || !own.uids[..3].contains(&who.uid) && !own.has(abi::CAP_SETUID)
        || !own.gids[..3].contains(&who.gid) && !own.has(abi::CAP_SETGID)
    {
        return Err(Errno::EPERM);
    }
    if others_pid && process::find(who.pid).is_none() { Err(Errno::ESRCH) } else { Ok(()) }
}

/// Reads the control messages of a `sendmsg`.
fn read_control(thread: &Thread, header: &Header) -> Result<Control, Errno> {
    if header.control == 0 || header.control_len == 0 {
        return Ok(Control::default());
    }
    if header.control_len > LONGEST_CONTROL {
        return Err(Errno::ENOBUFS);
    }
    let mut bytes = payer::zeros(header.control_len as usize)?;
    uaccess::read(&thread.memory(), header.control, &mut bytes)?;
    Control::parse(&bytes)
}

/// Implements `sendmsg`.
pub async fn sendmsg(thread: &Arc<Thread>, fd: u64, at: u64, flags: u64) -> Answer {
    let (open, who) = sender(thread, fd)?;
    let socket = socket_of(&open)?;
    let header = Header::read(thread, at)?;
    let mut bytes = UserBytes::many(thread, header.pieces, header.count)?;
    let control = read_control(thread, &header)?;
    control.who.map_or(Ok(()), |who| check_identity(thread, who))?;
    let to = match header.name {
        0 => None,
        _ if header.name_len == 0 => None,
        name => Some(resolve(thread, read_address(thread, socket, name, header.name_len.into())?)?),
    };
    let rights = rights(thread, socket, &control.descriptors)?;
    let with = Outgoing { to: to.as_ref(), who: control.who.unwrap_or(who), rights, header: control.header };
    send(thread, &open, &mut bytes, with, flags as u32).await.map(|sent| sent as u64)
}

/// Returns the files of descriptors, to send them.
fn rights(thread: &Thread, socket: &Socket, descriptors: &[u32]) -> Result<Option<Rights>, Errno> {
    if descriptors.is_empty() || socket.transport().common().domain != UNIX {
        return Ok(None);
    }
    let mut files = Vec::new();
    payer::reserve(&mut files, descriptors.len())?;
    for fd in descriptors {
        files.push(file::open_of(thread, u64::from(*fd))?);
    }
    let own = thread.credentials();
    let privileged = own.has(abi::CAP_SYS_RESOURCE) || own.has(abi::CAP_SYS_ADMIN);
    let most = (!privileged).then(|| file::limit(thread));
    Ok(Some(Rights::new(files, Sender { uid: own.uids[0], most })))
}

/// Implements `recvmsg`.
pub async fn recvmsg(thread: &Arc<Thread>, fd: u64, at: u64, flags: u64) -> Answer {
    let (open, flags) = (file::open_of(thread, fd)?, flags as u32);
    let socket = socket_of(&open)?;
    let header = Header::read(thread, at)?;
    let mut bytes = UserBytes::many(thread, header.pieces, header.count)?;
    let received = receive(thread, &open, &mut bytes, flags).await?;
    let memory = thread.memory();
    let write = |at: u64, bytes: &[u8]| uaccess::write(&memory, at, bytes);
    if header.name != 0 {
        let domain = socket.transport().common().domain;
        let address = received.cargo.from.as_ref().map(|from| from.bytes(domain)).transpose()?.unwrap_or_default();
        write(header.name, &address[..address.len().min(header.name_len as usize)])?;
        write(at + NAME_LEN, &(address.len() as u32).to_le_bytes())?;
    }
    let room = if header.control == 0 { 0 } else { usize::try_from(header.control_len).unwrap_or(usize::MAX) };
    let mut control = ControlWriter::new(room);
    if socket.transport().common().options.is_on(net::SO_PASSCRED) {
        control.add(net::SCM_CREDENTIALS, &received.cargo.who.bytes())?;
    }
    if let Some(packet) = &received.cargo.packet {
        let transport = socket.transport();
        packet.tell(transport.common().domain, |level, name| transport.is_on(level, name), &mut control)?;
    }
    if let Some(rights) = &received.cargo.rights {
        let numbers = install(thread, rights, control.room_for_descriptors(), flags)?;
        if numbers.len() < rights.files().len() * 4 {
            control.truncate();
        }
        if !numbers.is_empty() {
            control.add(net::SCM_RIGHTS, &numbers)?;
        }
    }
    let (control, cut) = control.finish();
    write(header.control, &control)?;
    write(at + CONTROL_LEN, &(control.len() as u64).to_le_bytes())?;
    let mut answer = flags & net::MSG_CMSG_CLOEXEC;
    answer |= if cut { net::MSG_CTRUNC } else { 0 };
    answer |= if received.len > received.count { net::MSG_TRUNC } else { 0 };
    write(at + FLAGS, &answer.to_le_bytes())?;
    Ok(if flags & net::MSG_TRUNC != 0 { received.len } else { received.count } as u64)
}

/// Adds descriptors for files that arrived, at most `most`, and returns their numbers as bytes.
fn install(thread: &Thread, rights: &Rights, most: usize, flags: u32) -> Result<Vec<u8>, Errno> {
    let close_on_exec = if flags & net::MSG_CMSG_CLOEXEC != 0 { abi::O_CLOEXEC } else { 0 };
    let mut numbers = Vec::new();
    for open in rights.files().iter().take(most) {
        numbers.try_reserve(4)?;
        let Ok(number) = file::add(thread, open.clone(), close_on_exec) else { break };
        numbers.extend_from_slice(&(number as u32).to_le_bytes());
    }
    Ok(numbers)
}

/// The size in bytes of a `struct mmsghdr`, and the place of the length in it.
const MULTIPLE: u64 = 64;
const LENGTH: u64 = 56;

/// Implements `sendmmsg`.
pub async fn sendmmsg(thread: &Arc<Thread>, fd: u64, at: u64, count: u64, flags: u64) -> Answer {
    sender(thread, fd)?;
    let mut done = 0;
    while done < (count as u32 as u64).min(MOST_MESSAGES) {
        let header = at + done * MULTIPLE;
        match sendmsg(thread, fd, header, flags).await {
            Ok(sent) => uaccess::write(&thread.memory(), header + LENGTH, &(sent as u32).to_le_bytes())?,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
        done += 1;
        TransferWaits(thread).pause().await;
    }
    Ok(done)
}

/// Implements `recvmmsg`. `timeout` is checked between two messages, as on Linux.
pub async fn recvmmsg(thread: &Arc<Thread>, [fd, at, count, flags, timeout, _]: [u64; 6]) -> Answer {
    /// Waits for the first message alone.
    const WAIT_FOR_ONE: u64 = 0x10000;
    sender(thread, fd)?;
    let deadline = match timeout {
        0 => None,
        from => Some(now_ns().saturating_add(super::clock::read_time(thread, from)?)),
    };
    let (mut done, mut flags) = (0, flags);
    while done < (count as u32 as u64).min(MOST_MESSAGES) {
        let header = at + done * MULTIPLE;
        match recvmsg(thread, fd, header, flags & !WAIT_FOR_ONE).await {
            Ok(got) => uaccess::write(&thread.memory(), header + LENGTH, &(got as u32).to_le_bytes())?,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
        done += 1;
        if flags & WAIT_FOR_ONE != 0 {
            flags |= u64::from(net::MSG_DONTWAIT);
        }
        if deadline.is_some_and(|deadline| now_ns() >= deadline) {
            break;
        }
        TransferWaits(thread).pause().await;
    }
    Ok(done)
}
