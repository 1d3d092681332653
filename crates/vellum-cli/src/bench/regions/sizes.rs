//! The sizes of the region and of its folios.

use vellum_linux::workload::case::{Case, TABLE_SPAN, parse_folio};

use super::parse_size;

/// The most informative folio sizes, in KiB.
pub const FEW_FOLIOS: [u32; 3] = [4, 64, 2048];

/// The sizes for a benchmark that touches its region in ascending order.
#[derive(Clone, clap::Args)]
#[group(skip)]
pub struct Sizes {
    /// Length of the region: a multiple of 2 MiB.
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    pub size: u64,
    /// Folio sizes in KiB whose pages are mapped by a PTE each.
    #[arg(long, value_delimiter = ',', default_values_t = FEW_FOLIOS, value_parser = parse_folio)]
    pub folios: Vec<u32>,
    /// Leave out the region of 2 MiB folios that are mapped by huge PTEs.
    #[arg(long)]
    pub no_huge: bool,
}

impl Sizes {
    /// Returns a case for each folio size.
    ///
    /// # Errors
    /// `--size` is not a multiple of 2 MiB.
    pub fn cases(&self) -> anyhow::Result<Vec<Case>> {
        check_size(self.size)?;
        Ok(cases_of(self.size, &self.folios, self.no_huge).collect())
    }
}

/// Checks the length of a region.
///
/// # Errors
/// It is not a multiple of 2 MiB.
pub fn check_size(size: u64) -> anyhow::Result<()> {
    anyhow::ensure!(size > 0 && size.is_multiple_of(TABLE_SPAN), "--size must be a multiple of 2 MiB");
    Ok(())
}

/// Returns a case for each of these folio sizes, and one for huge PTEs unless `no_huge`.
pub fn cases_of(size: u64, folios: &[u32], no_huge: bool) -> impl Iterator<Item = Case> + Clone {
    let small = folios.iter().map(move |&folio_kib| Case::of(size, folio_kib));
    small.chain((!no_huge).then_some(Case { huge: true, ..Case::of(size, 2048) }))
}
