//! Memory objects on the strict machine.
//!
//! | file | story |
//! |---|---|
//! | `world` | objects, spaces that map them, and a model of plain maps; one operation at a time |
//! | `remap` | areas of objects that change their size or place |
//! | `formats` | pages of other sizes |
//! | `mixed` | one run of copies and an object's pages |
//! | `together` | several CPUs at once: what is shared is shared, what is gone is gone |

#[path = "../property/dice.rs"]
#[allow(dead_code)]
pub mod dice;
pub mod formats;
pub mod mixed;
mod remap;
pub mod together;
pub mod world;
