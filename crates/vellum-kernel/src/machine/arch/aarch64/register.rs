//! System registers (Arm ARM, DDI 0487, chapter D19).

/// Reads a system register. Only for registers whose read has no side effect.
macro_rules! read_register {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: reading one of these registers has no side effect, and all that are named in this
        // crate exist at EL1.
        unsafe {
            core::arch::asm!(
                concat!("mrs {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)
            )
        };
        value
    }};
}

/// Writes a system register and synchronizes. Unsafe: the caller is responsible for the effect.
macro_rules! write_register {
    ($name:literal, $value:expr) => {{
        let value: u64 = $value;
        core::arch::asm!(concat!("msr ", $name, ", {}"), "isb", in(reg) value, options(nostack, preserves_flags))
    }};
}
