//! Cases with new seeds, for hours: in a process for each of the host's CPUs, because threads of
//! one process wait for each other whenever the host maps memory.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::dice::derive;
use super::watch::{self, Case, OPERATIONS, env_number};

/// A kind of cases: the test that runs one of them again, and how to run one.
pub type Fuzz = (&'static str, fn(u64, &Arc<Case>));

const SEED: &str = "VELLUM_SEED";
/// The number of the first case.
const FROM: &str = "VELLUM_FUZZ_CASE";
const PROCESSES: &str = "VELLUM_FUZZ_PROCESSES";
/// Which of the processes this is; none is set in the one that starts the others.
const PART: &str = "VELLUM_FUZZ_PART";
/// A process begins a line with this that says how far it is.
const SO_FAR: &str = "so far: ";
/// So often a run says how far it is.
const SAYS: Duration = Duration::from_secs(30);

/// A process has done so many operations, and all of its cases before this one.
type Done = (u64, u64);

/// Runs cases of these kinds in turns until the time that has passed, and the operations done, are
/// enough, or a case fails. What a case consists of follows from VELLUM_SEED and its number, so a
/// run that was cut off goes on at VELLUM_FUZZ_CASE. `test` is the caller, which each of the
/// processes runs too.
pub fn run(test: &str, kinds: &[Fuzz], enough: impl Fn(Duration, u64) -> bool) {
    match env_number(PART) {
        Some(part) => work(part, kinds),
        None => lead(test, enough),
    }
}

/// Runs this process's cases until it is ended: as many of each kind as any other process.
fn work(part: u64, kinds: &[Fuzz]) {
    let [seed, from, processes] =
        [SEED, FROM, PROCESSES].map(|name| env_number(name).expect("the process that leads sets it"));
    let all = kinds.len() as u64;
    for n in (from..).filter(|n| n / all % processes == part) {
        let (name, case) = kinds[(n % all) as usize];
        watch::one(name, derive(seed, n), &case);
        println!("{SO_FAR}{} {}", OPERATIONS.load(Ordering::Relaxed), n + 1);
    }
}

fn lead(test: &str, enough: impl Fn(Duration, u64) -> bool) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let (seed, from) = (env_number(SEED).unwrap_or(now), env_number(FROM).unwrap_or(0));
    let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    let processes = env_number(PROCESSES).unwrap_or(cpus).max(1);
    println!("{SEED}={seed:#x}, from case {from} on, in {processes} processes");
    let (tell, told) = channel();
    let start = |part| {
        let mut command = Command::new(env::current_exe().expect("the test's own program"));
        command.args(["--ignored", "--nocapture", "--exact", test]).stdin(Stdio::null()).stdout(Stdio::piped());
        let all = [(SEED, seed), (FROM, from), (PROCESSES, processes), (PART, part)];
        command.envs(all.map(|(name, value)| (name, value.to_string())));
        let mut child = command.spawn().expect("a process of the host's");
        listen(&mut child, part as usize, tell.clone());
        child
    };
    let mut children: Vec<Child> = (0..processes).map(start).collect();
    let mut done: Vec<Done> = vec![(0, from); processes as usize];
    let (began, mut said, mut failed) = (Instant::now(), Duration::ZERO, false);
    loop {
        match told.recv_timeout(Duration::from_secs(1)) {
            Ok((part, Some(so_far))) => done[part] = so_far,
            Ok((_, None)) => failed = true,
            Err(_) => {}
        }
        let (passed, operations) = (began.elapsed(), done.iter().map(|(operations, _)| operations).sum());
        let ends = failed || enough(passed, operations);
        if ends || passed >= said + SAYS {
            said = passed;
            // All cases before this one are done.
            let next = done.iter().map(|(_, next)| *next).min().unwrap_or(from);
            println!(
                "{:7} s: {operations:9} operations ({:.0} a second), {}; to go on: {SEED}={seed:#x} {FROM}={next}",
                passed.as_secs(),
                operations as f64 / passed.as_secs_f64(),
                if failed { "A CASE HAS FAILED" } else { "no case has failed" },
            );
        }
        if ends {
            break;
        }
    }
    for child in &mut children {
        // One that has ended can't be ended, and that is as well.
        let _ = child.kill();
        let _ = child.wait();
    }
    assert!(!failed, "a case has failed");
}

/// Tells how far a process is, and at last that it has ended, as it does when a case fails.
fn listen(child: &mut Child, part: usize, tell: Sender<(usize, Option<Done>)>) {
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let so_far = line.strip_prefix(SO_FAR).and_then(|line| line.split_once(' '));
            if let Some((operations, next)) = so_far
                && let (Ok(operations), Ok(next)) = (operations.parse(), next.parse())
            {
                let _ = tell.send((part, Some((operations, next))));
            }
        }
        let _ = tell.send((part, None));
    });
}
