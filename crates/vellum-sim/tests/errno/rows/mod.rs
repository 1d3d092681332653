//! The table of calls.
//!
//! | file | calls |
//! |---|---|
//! | `map` | `mmap` |
//! | `unmap_protect` | `munmap`, `mprotect` |
//! | `remap` | `mremap` |
//! | `lock` | `mlock` and its variants, `mseal` |
//! | `advise` | `madvise`, `mincore` |
//! | `file` | shared memory and memory files |
//! | `user_half` | all calls, with addresses above the user half |
//! | `vma_limit` | all calls, at the limit on the number of VMAs |

mod advise;
mod file;
mod lock;
mod map;
mod remap;
mod unmap_protect;
mod user_half;
mod vma_limit;

pub use advise::{ADVISE, MORE_ADVICE, RESIDENT};
pub use file::FILE;
pub use lock::{LOCK, SEAL};
pub use map::MAP;
pub use remap::REMAP;
pub use unmap_protect::{PROTECT, UNMAP};
pub use user_half::BEYOND;
pub use vma_limit::MANY;

use vellum::space::{Advise, LockAll, MapFlags, RemapFlags};
use vellum::vma::{Expected, Prot};

use crate::fixtures::kernel::{Answers, BASE, Expect, Given, Kernel, PAGE, Row};

const R: Prot = Prot::READ;
const RW: Prot = Prot::READ.union(Prot::WRITE);
const NONE: Prot = Prot::empty();
const RX: Prot = Prot::READ.union(Prot::EXEC);
const RWX: Prot = RW.union(Prot::EXEC);
const ANYWHERE: MapFlags = MapFlags::empty();
const FIXED: MapFlags = MapFlags::FIXED;
const NOREPLACE: MapFlags = MapFlags::FIXED_NOREPLACE;
/// More bytes than any machine has, and fewer than the address space.
const VAST: u64 = 1 << 46;

const ENOMEM: i64 = -12;
const EACCES: i64 = -13;
const EFAULT: i64 = -14;

/// No limits.
const AS_IT_IS: Given = Given { address_space: None, locked: None, no_exec_gain: false };

const fn row(name: &'static str, calls: fn(&dyn Kernel) -> Answers) -> Row {
    Row { name, given: AS_IT_IS, calls, expect: Expect::Same }
}

const fn locked(name: &'static str, pages: u64, calls: fn(&dyn Kernel) -> Answers) -> Row {
    Row { given: Given { locked: Some(pages * PAGE), ..AS_IT_IS }, ..row(name, calls) }
}

const fn room(name: &'static str, pages: u64, calls: fn(&dyn Kernel) -> Answers) -> Row {
    Row { given: Given { address_space: Some(pages * PAGE), ..AS_IT_IS }, ..row(name, calls) }
}

const fn no_gain(name: &'static str, calls: fn(&dyn Kernel) -> Answers) -> Row {
    Row { given: Given { no_exec_gain: true, ..AS_IT_IS }, ..row(name, calls) }
}

impl Row {
    const fn differs(self, engine: &'static [i64], linux: &'static [i64], why: &'static str) -> Row {
        Row { expect: Expect::Differ { engine, linux, why }, ..self }
    }
}

/// Maps this many pages at `BASE`.
fn some(k: &dyn Kernel, pages: u64) {
    assert_eq!(k.map(BASE, pages * PAGE, RW, FIXED), BASE as i64);
    // Small pages, whatever the machine's policy is.
    k.advise(BASE, pages * PAGE, Advise::NoHuge);
}

/// Maps two pages, a hole of one, and two pages.
fn holed(k: &dyn Kernel) {
    some(k, 5);
    assert_eq!(k.unmap(BASE + 2 * PAGE, PAGE), 0);
}

/// Returns the protections of the VMAs, as digits of a number.
fn protections(k: &dyn Kernel) -> i64 {
    k.vmas().iter().fold(0, |all, (.., prot)| all * 10 + i64::from(*prot) + 1)
}
