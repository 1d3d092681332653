//! Settings of the machine that a measurement changes or adds, each restored on every way out; and
//! one that it only reads.
//!
//! | module | contents |
//! |---|---|
//! | [`knobs`] | sysfs settings, changed in a scope |
//! | [`keeper`] | the process that restores them when this one is killed |
//! | [`mthp`] | the huge-page settings that give folios of one size |
//! | [`page_reporting`] | the return of free memory to a hypervisor, which is only read |
//! | [`resource`] | a device that a helper process makes, and removes when the benchmark ends |
//! | [`zram`] | block devices in compressed memory, and swap on one |
//! | [`disk`] | a file system on such a device |

pub mod disk;
pub mod keeper;
pub mod knobs;
pub mod mthp;
pub mod page_reporting;
pub mod resource;
pub mod zram;
