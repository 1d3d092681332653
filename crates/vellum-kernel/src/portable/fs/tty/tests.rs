//! Tests of the line discipline and of pseudoterminals. Linux 6.18 gave the expected bytes.

use super::devpts::Devpts;
use super::ends::{Master, Slave};
use super::terminal::{Side, Terminal};
use super::termios::Termios;
use super::*;
use crate::fs::inode::{Directory, File};
use crate::fs::meta::Device;
use linux_raw_sys::general::*;
use spin::Mutex;
use std::vec;
use std::vec::Vec;

/// Records what terminals ask for.
#[derive(Default)]
struct Record {
    signals: Mutex<Vec<(u32, u32)>>,
    hung_up: Mutex<u32>,
    closed: Mutex<u32>,
    is_background: Mutex<bool>,
}

impl Jobs for Record {
    fn signal(&self, group: u32, signal: u32) {
        self.signals.lock().push((group, signal));
    }

    fn check(&self, _: &Terminal, _: u32) -> Result<(), Errno> {
        if *self.is_background.lock() { Err(Errno::EINTR) } else { Ok(()) }
    }

    fn opened(&self, _: &Arc<Terminal>, _: u32) {}

    fn closed(&self, _: &Arc<Terminal>) {
        *self.closed.lock() += 1;
    }

    fn hung_up(&self, _: &Arc<Terminal>) {
        *self.hung_up.lock() += 1;
    }

    fn user(&self) -> u32 {
        1000
    }

    fn is_privileged(&self) -> bool {
        false
    }
}

struct Pair {
    record: Arc<Record>,
    devpts: Arc<Devpts>,
    master: Option<Arc<Master>>,
    slave: Option<Arc<dyn File>>,
    terminal: Arc<Terminal>,
}

type Bytes = Result<Vec<u8>, Errno>;

fn read(file: &dyn File, room: usize) -> Bytes {
    let mut bytes = vec![0; room];
    let count = file.read(0, &mut &mut bytes[..])?;
    bytes.truncate(count);
    Ok(bytes)
}

impl Pair {
    fn new() -> Pair {
        let record = Arc::new(Record::default());
        let devpts = Devpts::new(Device::default(), record.clone());
        let master = devpts.open_master().unwrap();
        let terminal = master.terminal().clone();
        terminal.set_locked(false);
        terminal.set_controlled(7, 8);
        let slave = Some(Slave::open(&terminal, 0).unwrap());
        Pair { record, devpts, master: Some(master), slave, terminal }
    }

    fn with(change: impl FnOnce(&mut Termios)) -> Pair {
        let pair = Pair::new();
        pair.change(change);
        pair
    }

    fn change(&self, change: impl FnOnce(&mut Termios)) {
        let mut termios = self.terminal.termios();
        change(&mut termios);
        self.terminal.set_termios(termios, false);
    }

    fn master(&self) -> &Master {
        self.master.as_ref().unwrap()
    }

    fn slave(&self) -> &dyn File {
        &**self.slave.as_ref().unwrap()
    }

    fn type_in(&self, bytes: &[u8]) {
        assert_eq!(self.master().write(0, &mut &bytes[..]), Ok(bytes.len()));
    }

    fn print(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.slave().write(0, &mut &bytes[..])
    }

    fn shown(&self) -> Bytes {
        read(self.master(), 100_000)
    }

    fn line(&self) -> Bytes {
        read(self.slave(), 100_000)
    }

    fn signals(&self) -> Vec<(u32, u32)> {
        core::mem::take(&mut self.record.signals.lock())
    }
}

fn raw(termios: &mut Termios) {
    termios.lflag &= !(ICANON | ECHO | ISIG);
}

#[test]
fn lines_are_edited_and_echoed_as_on_linux() {
    let pair = Pair::new();
    for (typed, echo, line) in [
        (&b"abc\x7f\x7fZ\n"[..], &b"abc\x08 \x08\x08 \x08Z\r\n"[..], &b"aZ\n"[..]),
        (b"a\tb\x7f\x7f\x7fX\r", b"a\tb\x08 \x08\x08\x08\x08\x08\x08\x08\x08\x08 \x08X\r\n", b"X\n"),
        (b"one two\x17three\n", b"one two\x08 \x08\x08 \x08\x08 \x08three\r\n", b"one three\n"),
        (b"one two  \x17\n", b"one two  \x08 \x08\x08 \x08\x08 \x08\x08 \x08\x08 \x08\r\n", b"one \n"),
        (b"xx\x01\x7fy\x15k\n", b"xx^A\x08 \x08\x08 \x08y\x08 \x08\x08 \x08\x08 \x08k\r\n", b"k\n"),
        (b"\x16\x03q\n", b"^\x08^Cq\r\n", b"\x03q\n"),
        (b"ab\x12c\n", b"ab^R\r\nabc\r\n", b"abc\n"),
        (b"\xc3\xa9\x7f\n", b"\xc3\xa9\x08 \x08\r\n", b"\xc3\n"),
    ] {
        pair.type_in(typed);
        assert_eq!((pair.shown().unwrap(), pair.line().unwrap()), (echo.to_vec(), line.to_vec()), "{typed:?}");
    }
    pair.change(|termios| termios.iflag |= IUTF8);
    pair.type_in(b"\xc3\xa9\t\x7f\x7f\n");
    assert_eq!(pair.shown().unwrap(), b"\xc3\xa9\t\x08\x08\x08\x08\x08\x08\x08\x08 \x08\r\n");
    assert_eq!(pair.line().unwrap(), b"\n");
}

#[test]
fn flags_change_the_echo() {
    for (flags, typed, echo) in [
        (ECHOCTL, &b"\x01\x7f"[..], &b"\x01"[..]),
        (ECHOE, b"ab\x7f", b"ab^?"),
        (ECHOKE, b"ab\x15", b"ab^U\r\n"),
        (ECHOKE | ECHOK, b"ab\x15", b"ab^U"),
        (IEXTEN, b"ab\x17\x16", b"ab^W^V"),
        (ECHO, b"ab\n", b""),
    ] {
        let pair = Pair::with(|termios| termios.lflag &= !flags);
        pair.type_in(typed);
        assert_eq!(pair.shown().unwrap_or_default(), echo, "without {flags:o}, {typed:?}");
    }
    let pair = Pair::with(|termios| termios.lflag = termios.lflag & !ECHO | ECHONL);
    pair.type_in(b"secret\n");
    assert_eq!(pair.shown().unwrap(), b"\r\n");
}

#[test]
fn input_flags_change_bytes() {
    for (set, cleared, typed, line) in [
        (IGNCR, 0, &b"a\rb\n"[..], &b"ab\n"[..]),
        (0, ICRNL, b"a\rb\n", b"a\rb\n"),
        (INLCR, ICRNL, b"a\nb\x04", b"a\rb"),
        (ISTRIP, 0, b"\xe1\n", b"a\n"),
        (IUCLC, 0, b"ABC\n", b"abc\n"),
    ] {
        let pair = Pair::with(|termios| termios.iflag = termios.iflag & !cleared | set);
        pair.type_in(typed);
        assert_eq!(pair.line().unwrap(), line, "{typed:?}");
    }
}

#[test]
fn output_is_processed() {
    for (set, cleared, printed, shown) in [
        (0, 0, &b"a\nb"[..], &b"a\r\nb"[..]),
        (0, OPOST, b"a\nb", b"a\nb"),
        (0, ONLCR, b"a\nb", b"a\nb"),
        (OCRNL, ONLCR, b"a\rb", b"a\nb"),
        (ONOCR, 0, b"\ra\r", b"a\r"),
        (XTABS, 0, b"a\tb\n\tc", b"a       b\r\n        c"),
        (OLCUC, 0, b"ab", b"AB"),
    ] {
        let pair = Pair::with(|termios| termios.oflag = termios.oflag & !cleared | set);
        assert_eq!(pair.print(printed), Ok(printed.len()));
        assert_eq!(pair.shown().unwrap(), shown, "{printed:?}");
    }
}

#[test]
fn a_line_has_4096_bytes_at_most_and_its_end_is_kept() {
    let pair = Pair::new();
    pair.type_in(&[b'a'; 5000]);
    assert!(pair.line().is_err());
    pair.type_in(b"\n");
    let line = pair.line().unwrap();
    assert_eq!((line.len(), line.last()), (4096, Some(&b'\n')));
    assert_eq!(pair.line(), Err(Errno::EAGAIN));
}

#[test]
fn an_end_of_file_ends_a_line_and_is_no_byte() {
    let pair = Pair::new();
    pair.type_in(b"\x04");
    assert_eq!((pair.slave().unread(0), pair.line()), (Ok(0), Ok(vec![])));
    pair.type_in(b"abc\x04d\n");
    assert_eq!(pair.slave().unread(0), Ok(5));
    assert_eq!((read(pair.slave(), 3), pair.line()), (Ok(b"abc".to_vec()), Ok(b"d\n".to_vec())));
    pair.type_in(b"abc\x04de");
    pair.change(raw);
    assert_eq!(pair.line().unwrap(), b"abc\0de");
    pair.type_in(b"pq");
    pair.change(|termios| termios.lflag |= ICANON);
    assert_eq!((pair.line(), pair.line()), (Ok(b"pq".to_vec()), Err(Errno::EAGAIN)));
}

#[test]
fn special_characters_are_signals_to_the_foreground_and_drop_what_is_on_its_way() {
    let pair = Pair::new();
    pair.print(b"output").unwrap();
    pair.type_in(b"line\nabc\x03");
    assert_eq!(pair.signals(), [(8, SIGINT)]);
    assert_eq!((pair.shown(), pair.line()), (Ok(b"outputline\r\nabc^C".to_vec()), Err(Errno::EAGAIN)));
    pair.type_in(b"\x1c\x1a");
    assert_eq!(pair.signals(), [(8, SIGQUIT), (8, SIGTSTP)]);
    pair.shown().unwrap();
    pair.change(|termios| termios.lflag |= NOFLSH);
    pair.type_in(b"ab\x03c\n");
    assert_eq!((pair.signals(), pair.line()), (vec![(8, SIGINT)], Ok(b"abc\n".to_vec())));
    pair.change(|termios| termios.lflag &= !ISIG);
    pair.type_in(b"\x03\n");
    assert_eq!((pair.signals(), pair.line()), (vec![], Ok(b"\x03\n".to_vec())));
    pair.terminal.set_window([24, 80, 0, 0]);
    pair.terminal.set_window([24, 80, 0, 0]);
    assert_eq!(pair.signals(), [(8, SIGWINCH)], "only a change is a signal");
}

#[test]
fn output_stops_and_starts() {
    let pair = Pair::new();
    pair.type_in(b"ab\x13");
    assert_eq!((pair.shown(), pair.print(b"zz")), (Ok(b"ab".to_vec()), Err(Errno::EAGAIN)));
    assert_eq!(pair.slave().ready() & POLLOUT, 0);
    pair.type_in(b"cd");
    assert_eq!(pair.shown(), Err(Errno::EAGAIN), "echo waits too");
    pair.type_in(b"\x11");
    assert_eq!((pair.shown(), pair.print(b"zz")), (Ok(b"cd".to_vec()), Ok(2)));
    pair.terminal.set_stopped(Side::Slave, true);
    pair.type_in(b"\x11");
    assert_eq!(pair.print(b"zz"), Err(Errno::EAGAIN), "the user does not start what a program stopped");
    pair.terminal.set_stopped(Side::Slave, false);
    assert_eq!(pair.print(b"zz"), Ok(2));
    pair.change(|termios| termios.iflag |= IXANY);
    pair.type_in(b"\x13");
    assert_eq!(pair.print(b"zz"), Err(Errno::EAGAIN));
    pair.type_in(b"x");
    assert_eq!(pair.print(b"zz"), Ok(2));
}

#[test]
fn raw_reads_wait_for_the_least_number_of_bytes() {
    let pair = Pair::with(|termios| {
        raw(termios);
        termios.cc[VMIN as usize] = 5;
    });
    pair.type_in(b"1234");
    assert_eq!(pair.slave().ready() & POLLIN, 0);
    pair.type_in(b"5");
    assert_eq!((pair.slave().ready() & POLLIN, pair.line()), (POLLIN, Ok(b"12345".to_vec())));
    pair.change(|termios| termios.cc[VMIN as usize] = 0);
    assert_eq!(pair.line(), Ok(vec![]));
    pair.change(|termios| termios.cc[VTIME as usize] = 1);
    assert_eq!(pair.line(), Err(Errno::EAGAIN));
}

#[test]
fn buffers_are_bounded_and_what_they_hold_comes_out_in_order() {
    let pair = Pair::with(raw);
    let (mut sent, mut printed) = (0, 0);
    while pair.master().ready() & POLLOUT != 0 {
        sent += pair.master().write(0, &mut &vec![b'x'; 1000][..]).unwrap();
        assert!(sent < 100_000);
    }
    assert_eq!(pair.master().write(0, &mut &b"x"[..]), Err(Errno::EAGAIN));
    while pair.slave().ready() & POLLOUT != 0 {
        printed += pair.print(&[b'y'; 1000]).unwrap();
        assert!(printed < 100_000);
    }
    assert_eq!(pair.print(b"y"), Err(Errno::EAGAIN));
    assert!(sent > 16_000 && printed > 15_000);
    let mut read = 0;
    while let Ok(bytes) = pair.line() {
        read += bytes.len();
    }
    assert_eq!((read, pair.shown().unwrap().len()), (sent, printed));
    assert!(pair.master().ready() & POLLOUT != 0 && pair.slave().ready() & POLLOUT != 0);
    // Complete lines hold further input up, too, and the echo of what is taken is bounded.
    let pair = Pair::new();
    while pair.master().ready() & POLLOUT != 0 {
        pair.type_in(b"0123456789\n");
    }
    assert!(pair.shown().unwrap().len() < 5000);
}

#[test]
fn ends_see_each_others_ends() {
    let mut pair = Pair::new();
    assert_eq!(pair.master().ready(), POLLOUT | POLLWRNORM);
    pair.print(b"last").unwrap();
    pair.slave = None;
    assert_eq!(pair.master().ready() & POLLHUP, POLLHUP);
    assert_eq!((pair.shown(), pair.shown()), (Ok(b"last".to_vec()), Err(Errno::EIO)));
    assert_eq!(*pair.record.closed.lock(), 1);
    pair.slave = Some(Slave::open(&pair.terminal, 0).unwrap());
    assert_eq!((pair.master().ready() & POLLHUP, pair.shown()), (0, Err(Errno::EAGAIN)));
    pair.type_in(b"abc\n");
    pair.master = None;
    assert_eq!(*pair.record.hung_up.lock(), 1);
    assert_eq!(pair.slave().ready(), POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDNORM | POLLWRNORM);
    assert_eq!((pair.line(), pair.print(b"x")), (Ok(vec![]), Err(Errno::EIO)));
    assert_eq!(Slave::open(&pair.terminal, 0).err(), Some(Errno::EIO));
    assert!(pair.devpts.slave(0).is_none());
}

#[test]
fn a_hang_up_ends_the_files_that_are_open_and_no_later_ones() {
    let pair = Pair::new();
    pair.terminal.hang_up();
    assert_eq!((pair.line(), pair.terminal.session(), pair.terminal.foreground()), (Ok(vec![]), 0, 0));
    let slave = Slave::open(&pair.terminal, 0).unwrap();
    assert_eq!(read(&*slave, 9), Err(Errno::EAGAIN));
    drop(slave);
    assert_eq!(pair.master().ready() & POLLHUP, 0, "a file that was hung up is open still");
}

#[test]
fn packets_have_a_status() {
    let pair = Pair::new();
    pair.terminal.set_packets(true);
    pair.print(b"hi").unwrap();
    assert_eq!(pair.shown().unwrap(), b"\0hi");
    let status = |pair: &Pair| {
        assert_eq!(pair.master().ready() & (POLLPRI | POLLIN), POLLPRI | POLLIN);
        pair.shown().unwrap()
    };
    pair.terminal.set_stopped(Side::Slave, true);
    assert_eq!(status(&pair), [TIOCPKT_STOP as u8]);
    pair.terminal.set_stopped(Side::Slave, false);
    assert_eq!(status(&pair), [TIOCPKT_START as u8]);
    pair.terminal.flush(Side::Slave, true, true);
    assert_eq!(status(&pair), [(TIOCPKT_FLUSHREAD | TIOCPKT_FLUSHWRITE) as u8]);
    pair.change(|termios| termios.iflag &= !IXON);
    assert_eq!(status(&pair), [TIOCPKT_NOSTOP as u8]);
    pair.change(|termios| termios.iflag |= IXON);
    assert_eq!(status(&pair), [TIOCPKT_DOSTOP as u8]);
    assert_eq!(pair.shown(), Err(Errno::EAGAIN));
}

#[test]
fn flushes_drop_the_bytes_of_a_direction() {
    let pair = Pair::new();
    let fill = || {
        pair.terminal.flush(Side::Slave, true, false);
        pair.terminal.flush(Side::Master, true, false);
        pair.type_in(b"in\n");
        pair.print(b"out").unwrap();
    };
    // What came to an end is dropped by that end alone.
    for (side, input, output, reads, shows) in [
        (Side::Slave, true, false, false, true),
        (Side::Slave, false, true, true, true),
        (Side::Master, true, false, true, false),
        (Side::Master, false, true, true, true),
    ] {
        fill();
        pair.terminal.flush(side, input, output);
        assert_eq!((pair.line().is_ok(), pair.shown().is_ok()), (reads, shows), "{side:?} {input} {output}");
    }
    pair.change(raw);
    while pair.print(&[b'y'; 1000]).is_ok() {}
    pair.terminal.flush(Side::Slave, false, true);
    assert_eq!(pair.shown().unwrap().len(), 4095);
    while pair.master().ready() & POLLOUT != 0 {
        pair.type_in(&[b'x'; 200]);
    }
    pair.terminal.flush(Side::Master, false, true);
    assert_eq!(pair.line().unwrap().len(), 4095);
    assert_eq!(pair.line(), Err(Errno::EAGAIN));
}

#[test]
fn jobs_in_the_background_neither_read_nor_write_with_tostop() {
    let pair = Pair::new();
    pair.type_in(b"abc\n");
    *pair.record.is_background.lock() = true;
    assert_eq!((pair.line(), pair.print(b"x")), (Err(Errno::EINTR), Ok(1)));
    pair.change(|termios| termios.lflag |= TOSTOP);
    assert_eq!(pair.print(b"x"), Err(Errno::EINTR));
}

#[test]
fn slaves_are_locked_and_named_by_the_lowest_free_number() {
    let pair = Pair::new();
    let second = pair.devpts.open_master().unwrap();
    assert_eq!(Slave::open(second.terminal(), 0).err(), Some(Errno::EIO));
    let root = pair.devpts.root().unwrap();
    let names = || {
        let mut names = vec![];
        root.list(0, &mut |entry| {
            names.push(std::string::String::from_utf8(entry.name.to_vec()).unwrap());
            true
        })
        .unwrap();
        names
    };
    assert_eq!(names(), ["ptmx", "0", "1"]);
    let inode = root.find(b"1").unwrap();
    let meta = inode.meta();
    assert_eq!((meta.special.major, meta.special.minor, meta.uid, meta.gid, meta.mode), (136, 1, 1000, 5, 0o620));
    assert!(root.find(b"01").is_err() && root.find(b"2").is_err());
    drop(second);
    assert_eq!(names(), ["ptmx", "0"]);
    assert_eq!(pair.devpts.open_master().unwrap().terminal().number, 1);
    pair.terminal.set_exclusive(true);
    assert_eq!(Slave::open(&pair.terminal, 0).err(), Some(Errno::EBUSY));
}

/// Random input, whatever the settings, raises no panic, and no buffer grows without a bound.
#[test]
fn random_input_is_survived() {
    let mut random = oorandom::Rand32::new(7);
    for _ in 0..100 {
        let pair = Pair::with(|termios| {
            let mut flags = || random.rand_u32() & random.rand_u32();
            (termios.iflag, termios.oflag) = (termios.iflag ^ flags(), termios.oflag ^ flags());
            termios.lflag ^= flags();
        });
        for _ in 0..60 {
            let count = random.rand_range(1..700) as usize;
            let bytes: Vec<u8> = (0..count).map(|_| random.rand_range(0..160) as u8).collect();
            match random.rand_range(0..6) {
                0 | 1 => drop(pair.master().write(0, &mut &bytes[..])),
                2 => drop(pair.print(&bytes)),
                3 => drop(read(pair.slave(), count)),
                4 => drop(read(pair.master(), count)),
                _ => pair.change(|termios| termios.lflag ^= ICANON),
            }
            assert!(pair.terminal.unread(Side::Master) <= 20 << 10 && pair.terminal.unread(Side::Slave) <= 4096);
        }
    }
}
