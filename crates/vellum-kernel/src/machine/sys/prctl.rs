//! Implements `prctl`.

use super::identity::change;
use super::{Answer, seccomp};
use crate::mem::uaccess;
use crate::task::Thread;
use crate::task::signal::COUNT;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general::{CAP_LAST_CAP, CAP_SETPCAP};
use linux_raw_sys::prctl as abi;
use vellum_kernel::capabilities::cap;
use vellum_kernel::errno::Errno;

/// The values of `PR_SET_MDWE`: none, no executable mappings that were writable, and the same
/// without inheritance by children.
const REFUSALS: [u64; 3] =
    [0, abi::PR_MDWE_REFUSE_EXEC_GAIN as u64, (abi::PR_MDWE_REFUSE_EXEC_GAIN | abi::PR_MDWE_NO_INHERIT) as u64];

/// Implements `prctl`.
pub fn prctl(thread: &Arc<Thread>, [option, value, third, fourth, fifth]: [u64; 5]) -> Answer {
    let process = &thread.process;
    let memory = thread.memory();
    let write = |word: u32| uaccess::write(&memory, value, &word.to_le_bytes()).map(|()| 0);
    let nothing_more = third == 0 && fourth == 0 && fifth == 0;
    match option as u32 {
        abi::PR_SET_NAME => {
            let mut name = [0; 16];
            let copied = uaccess::read_some(&memory, value, &mut name[..15]);
            if copied < 15 && !name[..copied].contains(&0) {
                return Err(Errno::EFAULT);
            }
            thread.set_name(name.split(|byte| *byte == 0).next().unwrap_or_default());
            Ok(0)
        }
        abi::PR_GET_NAME => uaccess::write(&memory, value, &*thread.name.lock()).map(|()| 0),
        abi::PR_SET_PDEATHSIG if value <= COUNT.into() => {
            process.death_signal.store(value as u32, Relaxed);
            Ok(0)
        }
        abi::PR_GET_PDEATHSIG => write(process.death_signal.load(Relaxed)),
        abi::PR_GET_DUMPABLE => Ok(process.dumpable.load(Relaxed).into()),
        abi::PR_SET_DUMPABLE if value <= 1 => {
            process.dumpable.store(value as u32, Relaxed);
            Ok(0)
        }
        abi::PR_SET_CHILD_SUBREAPER => {
            process.is_subreaper.store(value != 0, Relaxed);
            Ok(0)
        }
        abi::PR_GET_CHILD_SUBREAPER => write(process.is_subreaper.load(Relaxed).into()),
        abi::PR_SET_NO_NEW_PRIVS if value == 1 && nothing_more => {
            thread.traits.lock().no_new_privileges = true;
            Ok(0)
        }
        abi::PR_GET_NO_NEW_PRIVS if value == 0 && nothing_more => Ok(thread.traits.lock().no_new_privileges.into()),
        abi::PR_SET_TIMERSLACK => {
            let mut traits = thread.traits.lock();
            traits.slack = if value as i64 <= 0 { traits.usual_slack } else { value };
            Ok(0)
        }
        abi::PR_GET_TIMERSLACK => Ok(thread.traits.lock().slack),
        abi::PR_SET_TIMING if value == 0 => Ok(0),
        abi::PR_GET_TIMING => Ok(0),
        // The time-stamp counter is readable from user mode.
        abi::PR_GET_TSC => write(abi::PR_TSC_ENABLE),
        abi::PR_SET_TSC if value as u32 == abi::PR_TSC_ENABLE => Ok(0),
        abi::PR_GET_SECCOMP => Ok(thread.traits.lock().seccomp.mode.into()),
        abi::PR_SET_SECCOMP => seccomp::set_mode(thread, value, third),
        abi::PR_GET_KEEPCAPS => Ok(thread.credentials().keep_caps.into()),
        abi::PR_SET_KEEPCAPS if value <= 1 => change(thread, |own| {
            own.keep_caps = value == 1;
            Ok(0)
        }),
        abi::PR_GET_SECUREBITS => Ok(0),
        abi::PR_SET_SECUREBITS if !thread.credentials().has(CAP_SETPCAP) => Err(Errno::EPERM),
        abi::PR_SET_SECUREBITS if value == 0 => Ok(0),
        abi::PR_CAPBSET_READ if value <= CAP_LAST_CAP.into() => {
            Ok((thread.credentials().bounding & cap(value as u32) != 0).into())
        }
        abi::PR_CAPBSET_DROP if !thread.credentials().has(CAP_SETPCAP) => Err(Errno::EPERM),
        abi::PR_CAPBSET_DROP if value <= CAP_LAST_CAP.into() => change(thread, |own| {
            own.bounding &= !cap(value as u32);
            Ok(0)
        }),
        abi::PR_SET_MDWE if nothing_more && REFUSALS.contains(&value) => {
            if memory.set_mdwe(value as u32) {
                Ok(0)
            } else {
                Err(Errno::EPERM)
            }
        }
        abi::PR_GET_MDWE if value == 0 && nothing_more => Ok(memory.mdwe().into()),
        abi::PR_CAP_AMBIENT => ambient(thread, value, third, fourth == 0 && fifth == 0),
        _ => Err(Errno::EINVAL),
    }
}

/// Implements `PR_CAP_AMBIENT`: capabilities that a user other than root keeps across `execve`.
fn ambient(thread: &Thread, what: u64, which: u64, nothing_more: bool) -> Answer {
    let what = what as u32;
    if !nothing_more || which > CAP_LAST_CAP.into() || (what == abi::PR_CAP_AMBIENT_CLEAR_ALL && which != 0) {
        return Err(Errno::EINVAL);
    }
    let one = cap(which as u32);
    match what {
        abi::PR_CAP_AMBIENT_IS_SET => Ok((thread.credentials().ambient & one != 0).into()),
        abi::PR_CAP_AMBIENT_RAISE => change(thread, |own| {
            if own.permitted & own.inheritable & one == 0 {
                return Err(Errno::EPERM);
            }
            own.ambient |= one;
            Ok(0)
        }),
        abi::PR_CAP_AMBIENT_LOWER => change(thread, |own| {
            own.ambient &= !one;
            Ok(0)
        }),
        abi::PR_CAP_AMBIENT_CLEAR_ALL => change(thread, |own| {
            own.ambient = 0;
            Ok(0)
        }),
        _ => Err(Errno::EINVAL),
    }
}
