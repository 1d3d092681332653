//! Compares the floor with an independent one in C, `tools/floor/floor.c`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use vellum_linux::workload::arm::Arm;
use vellum_linux::workload::case::{Case, Op};

use super::{Arena, Placement, WAYS, Way};

const ARMS: [Arm; 2] = [Arm::Ascending, Arm::Random];

/// A row that the program prints.
#[derive(Debug, Deserialize, PartialEq, Eq)]
struct Row {
    folios: u64,
    checksum: String,
}

/// The compiled program, in a folder that is removed with it.
struct Program(tempfile::TempDir);

impl Program {
    fn compile() -> Program {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/floor/floor.c");
        let program = Program(tempfile::tempdir().unwrap());
        let options = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"];
        let status = Command::new("cc").args(options).arg(program.path()).arg(source).status().unwrap();
        assert!(status.success());
        program
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("floor")
    }

    fn run(&self, case: &Case, runs: u32) -> Row {
        let numbers = [case.bytes >> 20, case.folio_kib.into(), runs.into()].map(|number| number.to_string());
        let [mib, folio_kib, runs] = &numbers;
        let output = Command::new(self.path()).args([mib, folio_kib, case.arm.name(), runs]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn cases(bytes: u64, folios: &[u32]) -> impl Iterator<Item = Case> {
    ARMS.into_iter()
        .flat_map(move |arm| folios.iter().map(move |&folio_kib| Case { arm, ..Case::of(bytes, folio_kib) }))
}

/// Returns the number of folios that the floor frees, and the FNV-1a checksum of their frames in
/// the order of addresses.
fn freed(case: &Case) -> (u64, String) {
    let mut arena = Arena::new(case, Placement::in_order(case)).unwrap();
    arena.fill();
    arena.perform(Op::Munmap, Way::Ahead(8));
    let (mut folios, mut checksum) = (0, 0xcbf2_9ce4_8422_2325_u64);
    for &head in &arena.placement.heads {
        if arena.descriptors[head].references == 0 && arena.descriptors[head].maps == 0 {
            folios += 1;
            checksum = (checksum ^ head as u64).wrapping_mul(0x100_0000_01b3);
        }
    }
    (folios, format!("{checksum:016x}"))
}

#[test]
fn a_floor_in_c_frees_the_same_folios() {
    const FOLIOS: [u32; 3] = [4, 64, 2048];
    let program = Program::compile();
    let mut seen = Vec::new();
    for case in cases(8 << 20, &FOLIOS) {
        // A run for each way in which the program comes to the descriptors: they must not differ.
        let Row { folios, checksum, .. } = program.run(&case, WAYS.len() as u32);
        assert_eq!((folios, &checksum), (case.folios(), &freed(&case).1), "{} {}", case.arm.name(), case.label());
        assert_eq!(freed(&case).0, folios);
        seen.push(checksum);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), FOLIOS.len() * ARMS.len(), "a checksum tells the cases apart");
}
