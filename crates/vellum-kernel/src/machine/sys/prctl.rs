//! Implements `prctl`.

use super::identity::change;
use super::program::read_string;
use super::{Answer, seccomp};
use crate::mem::uaccess;
use crate::task::Thread;
use crate::task::signal::COUNT;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general::{CAP_LAST_CAP, CAP_SETPCAP};
use linux_raw_sys::prctl as abi;
use vellum::frame::policy::LargeFolios;
use vellum_kernel::capabilities::cap;
use vellum_kernel::errno::Errno;
use vellum_kernel::proc::names::{self, LONGEST_NAME};

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
        abi::PR_GET_TSC => {
            // SAFETY: a system call runs in the thread's own future.
            let denies = unsafe { thread.context() }.extended.denies_tsc();
            write(if denies { abi::PR_TSC_SIGSEGV } else { abi::PR_TSC_ENABLE })
        }
        abi::PR_SET_TSC => match value as u32 {
            abi::PR_TSC_ENABLE | abi::PR_TSC_SIGSEGV if thread.deny_tsc(value as u32 == abi::PR_TSC_SIGSEGV) => Ok(0),
            _ => Err(Errno::EINVAL),
        },
        abi::PR_GET_SPECULATION_CTRL if nothing_more => speculation(value),
        abi::PR_SET_SPECULATION_CTRL if fourth == 0 && fifth == 0 => set_speculation(value, third),
        abi::PR_SET_THP_DISABLE if fourth == 0 && fifth == 0 => {
            const EXCEPT_ADVISED: u64 = 2;
            let wanted = match (value, third) {
                (0, 0) => LargeFolios::All,
                (1.., 0) => LargeFolios::None,
                (1.., EXCEPT_ADVISED) => LargeFolios::Advised,
                _ => return Err(Errno::EINVAL),
            };
            memory.engine.set_limits(|limits| limits.large_folios = wanted);
            Ok(0)
        }
        abi::PR_GET_THP_DISABLE if value == 0 && nothing_more => Ok(match memory.engine.limits().large_folios {
            LargeFolios::All => 0,
            LargeFolios::None => 1,
            LargeFolios::Advised => 3,
        }),
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
        abi::PR_SET_VMA => set_vma_name(thread, value, [third, fourth, fifth]),
        abi::PR_CAP_AMBIENT => ambient(thread, value, third, fourth == 0 && fifth == 0),
        _ => Err(Errno::EINVAL),
    }
}

/// Implements `PR_SET_VMA`: names the memory at an address. At the address 0 of a name is none.
fn set_vma_name(thread: &Thread, what: u64, [addr, len, name]: [u64; 3]) -> Answer {
    let memory = thread.memory();
    if what as u32 != abi::PR_SET_VMA_ANON_NAME {
        return Err(Errno::EINVAL);
    }
    let name = match name {
        0 => None,
        at => Some(read_string(&memory, at, LONGEST_NAME).map_err(|error| match error {
            Errno::ENAMETOOLONG => Errno::EINVAL,
            other => other,
        })?),
    };
    if !name.as_ref().is_none_or(|name| names::is_valid(name)) {
        return Err(Errno::EINVAL);
    }
    memory.set_vma_name(addr, len, name.as_deref()).map(|()| 0)
}

/// Implements `PR_GET_SPECULATION_CTRL`: the kernel has no mitigation that it could turn on.
fn speculation(which: u64) -> Answer {
    match which as u32 {
        abi::PR_SPEC_STORE_BYPASS | abi::PR_SPEC_INDIRECT_BRANCH => Ok(abi::PR_SPEC_ENABLE.into()),
        abi::PR_SPEC_L1D_FLUSH => Ok(abi::PR_SPEC_FORCE_DISABLE.into()),
        _ => Err(Errno::ENODEV),
    }
}

/// Implements `PR_SET_SPECULATION_CTRL`.
fn set_speculation(which: u64, control: u64) -> Answer {
    match (which as u32, control as u32) {
        (abi::PR_SPEC_STORE_BYPASS, _) => Err(Errno::ENXIO),
        (abi::PR_SPEC_INDIRECT_BRANCH, abi::PR_SPEC_ENABLE) => Ok(0),
        (abi::PR_SPEC_INDIRECT_BRANCH, abi::PR_SPEC_DISABLE | abi::PR_SPEC_FORCE_DISABLE) => Err(Errno::EPERM),
        (abi::PR_SPEC_INDIRECT_BRANCH, _) => Err(Errno::ERANGE),
        (abi::PR_SPEC_L1D_FLUSH, _) => Err(Errno::EPERM),
        _ => Err(Errno::ENODEV),
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
