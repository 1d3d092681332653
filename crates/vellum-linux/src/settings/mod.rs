//! Settings of the machine that a measurement changes or adds, each restored on every way out.
//!
//! | module | contents |
//! |---|---|
//! | [`knobs`] | sysfs settings, changed in a scope |
//! | [`keeper`] | the process that restores them when this one is killed |
//! | [`mthp`] | the huge-page settings that give folios of one size |
//! | [`lent`] | devices and memcgs that a helper process makes, and removes when the benchmark ends |
//! | [`zram`] | a swap device in compressed memory |
//! | [`group`] | a memcg whose memory is reclaimed |

pub mod group;
pub mod keeper;
pub mod knobs;
pub mod lent;
pub mod mthp;
pub mod zram;
