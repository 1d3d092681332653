//! System registers (Arm ARM, DDI 0487, chapter D19).

/// Reads a system register.
macro_rules! read_register {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: reading one of these has no effect, and each that is named here there is at EL1.
        unsafe { core::arch::asm!(concat!("mrs {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)) };
        value
    }};
}

/// Writes a system register, and waits until that has its effect. The caller answers for what it does.
macro_rules! write_register {
    ($name:literal, $value:expr) => {{
        let value: u64 = $value;
        core::arch::asm!(concat!("msr ", $name, ", {}"), "isb", in(reg) value, options(nostack, preserves_flags))
    }};
}
