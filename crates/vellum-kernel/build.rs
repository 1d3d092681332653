//! Passes the linker script to the linker, so that a plain `cargo build` needs no further flags.

fn main() {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let script = format!("{}/link-{}.ld", variable("CARGO_MANIFEST_DIR"), variable("CARGO_CFG_TARGET_ARCH"));
    println!("cargo::rerun-if-changed={script}");
    println!("cargo::rustc-link-arg-bins=-T{script}");
    // The target links position-independent executables by default; the kernel has a fixed address
    // and is never relocated.
    println!("cargo::rustc-link-arg-bins=--no-pie");
}
