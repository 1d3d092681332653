//! Passes the linker script to the linker, so that a plain `cargo build` needs no further flags,
//! and builds the shared object that the kernel maps into programs.

use std::path::Path;
use std::process::Command;

fn main() {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let script = format!("{}/link-{}.ld", variable("CARGO_MANIFEST_DIR"), variable("CARGO_CFG_TARGET_ARCH"));
    println!("cargo::rerun-if-changed={script}");
    println!("cargo::rustc-link-arg-bins=-T{script}");
    // The target links position-independent executables by default; the kernel has a fixed address
    // and is never relocated.
    println!("cargo::rustc-link-arg-bins=--no-pie");
    if variable("CARGO_CFG_TARGET_OS") == "none" {
        build_vdso(&variable);
    }
}

/// Compiles `vdso/` and links it to `vdso.so` in the output folder. The compiler makes no shared
/// objects for targets without an operating system, so its linker is called here.
fn build_vdso(variable: &dyn Fn(&'static str) -> String) {
    println!("cargo::rerun-if-changed=vdso");
    println!("cargo::rerun-if-changed=src/portable/exec/vvar.rs");
    let (rustc, out) = (variable("RUSTC"), variable("OUT_DIR"));
    let (object, library) = (format!("{out}/vdso.o"), format!("{out}/vdso.so"));
    let mut compiler = Command::new(&rustc);
    compiler.args(["--edition=2024", "--crate-type=lib", "--crate-name=vdso", "--emit=obj", "vdso/vdso.rs"]);
    compiler.args(["--target", &variable("TARGET"), "-o", &object]);
    for option in ["opt-level=3", "panic=abort", "relocation-model=pic", "codegen-units=1", "force-unwind-tables=yes"] {
        compiler.args(["-C", option]);
    }
    run(&mut compiler);
    let sysroot = Command::new(&rustc).args(["--print", "sysroot"]).output().expect("rustc can't be run");
    let sysroot = String::from_utf8(sysroot.stdout).expect("the compiler's folder has no name in UTF-8");
    let linker = Path::new(sysroot.trim()).join("lib/rustlib").join(variable("HOST")).join("bin/rust-lld");
    let mut linker = Command::new(linker);
    linker.args(["-flavor", "gnu", "-shared", "-soname=linux-vdso.so.1", "-Bsymbolic", "--no-undefined"]);
    linker.args(["--hash-style=both", "--eh-frame-hdr", "--gc-sections", "--strip-all", "-z", "rodynamic"]);
    linker.args(["-z", "max-page-size=4096", "--build-id=none", "-T"]);
    linker.arg(format!("vdso/{}.ld", variable("CARGO_CFG_TARGET_ARCH"))).args([&object, "-o", &library]);
    run(&mut linker);
}

/// Runs a program, and ends the build if it fails.
fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?} can't be run: {error}"));
    assert!(status.success(), "{command:?} failed: {status}");
}
