//! Masking interrupts on this CPU, and waiting for one.

pub use x86_64::instructions::hlt as halt;
pub use x86_64::instructions::interrupts::{
    disable, enable, enable_and_hlt as enable_and_wait, without_interrupts as without,
};
