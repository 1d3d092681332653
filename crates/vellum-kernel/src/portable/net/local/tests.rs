use super::inbox::Inbox;
use super::*;
use crate::fs::io::testing::FaultsAfter;
use crate::fs::{Open, device};
use crate::net::Socket;
use crate::net::rights::{Rights, Sender};
use std::vec;

/// Held by tests that end sockets: each end of one begins a search of all.
static ENDS: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn with(rights: Option<Rights>) -> Outgoing<'static> {
    Outgoing { to: None, who: Identity::default(), rights, header: Default::default() }
}

fn rights(files: &[&Arc<Open>]) -> Rights {
    Rights::new(files.iter().map(|open| (*open).clone()).collect(), Sender::default())
}

fn received(from: &Endpoint, count: usize) -> Result<(Vec<u8>, usize), Errno> {
    let mut bytes = vec![0; count];
    let (count, cargo) = from.receive(&mut &mut bytes[..], Receive::default())?;
    bytes.truncate(count);
    Ok((bytes, cargo.rights.map_or(0, |rights| rights.files().len())))
}

/// Bytes, senders and descriptors come out of a stream as a list of bytes with marks says.
#[test]
fn a_stream_is_its_bytes_with_marks() {
    let file = device::open(Arc::new(device::Null), 0);
    let mut random = oorandom::Rand32::new(11);
    // The bytes with their senders, and whether descriptors came with the write that begins here or
    // went on from here.
    let mut model: VecDeque<(u8, u32, bool)> = VecDeque::new();
    let mut inbox = Inbox::default();
    let mut next = 0u8;
    for step in 0..30_000 {
        let fills = random.rand_range(0..10) < if step / 1_000 % 2 == 0 { 7 } else { 3 };
        let len = random.rand_range(1..if step % 7 == 0 { 6_000 } else { 20 }) as usize;
        if fills {
            let bytes: Vec<u8> = (0..len).map(|i| next.wrapping_add(i as u8)).collect();
            let who = Identity { pid: random.rand_range(0..2), uid: 0, gid: 0 };
            let mut sends = (random.rand_range(0..5) == 0).then(|| rights(&[&file]));
            let marked = sends.is_some();
            let room = random.rand_range(1..8_000) as usize;
            let fault = random.rand_range(1..8_000) as usize;
            let added = inbox.add(&mut FaultsAfter(&bytes[..], fault), room, who, &mut sends).unwrap();
            assert_eq!((added, sends.is_none()), (len.min(room).min(fault), true));
            model.extend((0..added).map(|i| (bytes[i], who.pid, marked && i == 0)));
            next = next.wrapping_add(added as u8);
        } else if !model.is_empty() {
            let (peeks, one_sender) = (random.rand_range(0..3) == 0, random.rand_range(0..2) == 0);
            let mut to = vec![0; len];
            let (count, cargo) = inbox.take(&mut &mut to[..], peeks, one_sender).unwrap();
            let expected: Vec<u8> = model.iter().take(count).map(|(byte, ..)| *byte).collect();
            assert!(count > 0 && to[..count] == expected, "step {step}");
            let first = model[0].1;
            let marks = model.iter().take(count).filter(|(.., marked)| *marked).count();
            assert_eq!((cargo.rights.is_some(), marks), (marks == 1, marks.min(1)), "step {step}");
            assert!(!one_sender || model.iter().take(count).all(|(_, pid, _)| *pid == first), "step {step}");
            let stops = count == len || count == model.len() || marks == 1 || one_sender && model[count].1 != first;
            assert!(stops, "step {step}: {count} of {len}");
            if !peeks {
                model.drain(..count);
            }
        }
        assert_eq!((inbox.len(), inbox.is_empty()), (model.len(), model.is_empty()));
        assert_eq!(inbox.has_rights(), model.iter().any(|(.., marked)| *marked), "step {step}");
        assert!(inbox.used() >= inbox.len());
    }
}

#[test]
fn a_fault_loses_no_bytes_of_a_stream() {
    let _ends = ENDS.lock();
    let [one, other] = pair(Type::Stream, Identity::default());
    assert_eq!(one.send(&mut &b"hello"[..], &mut with(None)), Ok(5));
    let mut to = [0; 5];
    let fault = other.receive(&mut FaultsAfter(&mut to[..], 0), Receive::default()).map(|(count, _)| count);
    assert_eq!(fault, Err(Errno::EFAULT));
    let part = other.receive(&mut FaultsAfter(&mut to[..], 2), Receive::default()).map(|(count, _)| count);
    assert_eq!((part, received(&other, 9)), (Ok(2), Ok((b"llo".to_vec(), 0))));
}

/// A message that can't be sent is still the sender's.
#[test]
fn a_message_that_is_refused_stays_with_its_sender() {
    let _ends = ENDS.lock();
    let [one, other] = pair(Type::Datagram, Identity::default());
    let file = device::open(Arc::new(device::Null), 0);
    other.shutdown(Shut { read: true, write: false }).unwrap();
    let (mut bytes, mut outgoing) = (vec![1, 2, 3], with(Some(rights(&[&file]))));
    assert_eq!(one.clone().send_message(&mut bytes, &mut outgoing), Err(Errno::EPIPE));
    assert_eq!((bytes.len(), outgoing.rights.map(|rights| rights.files().len())), (3, Some(1)));
}

/// Two sockets of which each lies in the inbox of the other end when the next socket does; one that
/// a program can reach through a socket in an inbox stays.
#[test]
fn sockets_that_no_program_can_reach_end() {
    let _ends = ENDS.lock();
    let open = |socket: &Arc<Endpoint>| Socket::open(socket.clone() as Arc<dyn Transport>, 0, (0, 0));
    let [one, other] = pair(Type::Stream, Identity::default());
    let [first, second] = [open(&one), open(&other)];
    let kept = [Arc::downgrade(&one), Arc::downgrade(&other)];
    one.send(&mut &b"x"[..], &mut with(Some(rights(&[&first, &second])))).unwrap();
    other.send(&mut &b"x"[..], &mut with(Some(rights(&[&first])))).unwrap();
    drop((one, other, first, second));
    assert!(kept.iter().all(|socket| socket.strong_count() > 0));

    // Here a program has `outer` open, in whose inbox lies `inner`, in whose inbox lies a file.
    let file = device::open(Arc::new(device::Null), 0);
    let [to_inner, inner] = pair(Type::Stream, Identity::default());
    let [to_outer, outer] = pair(Type::Stream, Identity::default());
    let inner_open = open(&inner);
    to_inner.send(&mut &b"x"[..], &mut with(Some(rights(&[&file])))).unwrap();
    to_outer.send(&mut &b"x"[..], &mut with(Some(rights(&[&inner_open])))).unwrap();
    let reached = Arc::downgrade(&inner);
    drop((inner, inner_open, to_inner));
    assert!(kept.iter().all(|socket| socket.strong_count() == 0), "the end of a socket begins a search");
    assert_eq!(reached.upgrade().map(|inner| inner.state.lock().inbox.has_rights()), Some(true));
    drop((outer, to_outer));
    assert_eq!((reached.strong_count(), Arc::strong_count(&file)), (0, 1));
}
