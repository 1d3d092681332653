//! Settings of the machine that a measurement changes or adds, each restored on every way out.
//!
//! | module | contents |
//! |---|---|
//! | [`knobs`] | sysfs settings, changed in a scope |
//! | [`keeper`] | the process that restores them when this one is killed |
//! | [`mthp`] | the huge-page settings that give folios of one size |
//! | [`resource`] | devices and memcgs that a helper process makes, and removes when the benchmark ends |
//! | [`zram`] | a swap device in compressed memory |
//! | [`memcg`] | a memcg whose memory is reclaimed |

pub mod keeper;
pub mod knobs;
pub mod memcg;
pub mod mthp;
pub mod resource;
pub mod zram;
