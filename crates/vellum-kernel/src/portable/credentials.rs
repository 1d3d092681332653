//! The credentials of a thread: its users, its groups, and its capabilities (credentials(7),
//! capabilities(7)).
//!
//! There are four IDs of a user or group: real, effective, saved, and the file-system ID, which
//! follows the effective one. A change of UIDs changes the capabilities by Linux's default rules:
//! there are no securebits.

use crate::capabilities::{ALL, Caps, cap};
use crate::errno::Errno;
use crate::fs::{FileCredentials, Meta, meta};
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as abi;

/// The capabilities that become effective, if permitted, when `setfsuid` changes the file-system
/// UID to 0, and cease to be effective when it changes the UID from 0 to another (Linux:
/// `CAP_FS_SET`).
const FS_CAPS: Caps = cap(abi::CAP_CHOWN)
    | cap(abi::CAP_MKNOD)
    | cap(abi::CAP_DAC_OVERRIDE)
    | cap(abi::CAP_DAC_READ_SEARCH)
    | cap(abi::CAP_FOWNER)
    | cap(abi::CAP_FSETID)
    | cap(abi::CAP_LINUX_IMMUTABLE)
    | cap(abi::CAP_MAC_OVERRIDE);

/// The argument (-1) with which a system call leaves an ID unchanged. No user or group has it as an
/// ID.
pub const UNCHANGED: u32 = u32::MAX;
/// The most supplementary groups (Linux: `NGROUPS_MAX`).
pub const NGROUPS_MAX: usize = 65536;

/// Indices into an [`IdSet`].
#[allow(missing_docs)]
pub mod id_index {
    pub const REAL: usize = 0;
    pub const EFFECTIVE: usize = 1;
    pub const SAVED: usize = 2;
    pub const FS: usize = 3;
}
use id_index::{EFFECTIVE, REAL, SAVED};

/// The four IDs of a user, or of a group, by [`id_index`].
pub type IdSet = [u32; 4];

/// A thread's credentials (Linux: `struct cred`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Credentials {
    pub uids: IdSet,
    pub gids: IdSet,
    pub groups: Arc<Vec<u32>>,
    pub permitted: Caps,
    pub effective: Caps,
    pub inheritable: Caps,
    pub bounding: Caps,
    pub ambient: Caps,
    /// True if a change from root to other users keeps the permitted capabilities
    /// (`PR_SET_KEEPCAPS`).
    pub keep_caps: bool,
}

/// The IDs that a system call is to set. An ID of [`UNCHANGED`] stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// `setuid`, `setgid`: one ID. Without privilege, only the effective ID is set.
    All(u32),
    /// `setreuid`, `setregid`: real, effective.
    Two(u32, u32),
    /// `setresuid`, `setresgid`: real, effective, saved.
    Three(u32, u32, u32),
}

/// Returns the IDs `now` as the system call with arguments `wanted` leaves them. `privileged`: the
/// caller has the capability to set any ID.
///
/// # Errors
/// `EPERM`; `EINVAL`: `setuid` or `setgid` with [`UNCHANGED`].
fn changed_ids(now: IdSet, wanted: Ids, privileged: bool) -> Result<IdSet, Errno> {
    let may_set =
        |id: u32, among: &[usize]| id == UNCHANGED || privileged || among.iter().any(|&index| now[index] == id);
    let or_now = |id: u32, index: usize| if id == UNCHANGED { now[index] } else { id };
    let [real, effective, saved] = match wanted {
        Ids::All(UNCHANGED) => return Err(Errno::EINVAL),
        Ids::All(id) if privileged => [id; 3],
        Ids::All(id) if may_set(id, &[REAL, SAVED]) => [now[REAL], id, now[SAVED]],
        Ids::Two(real, effective)
            if may_set(real, &[REAL, EFFECTIVE]) && may_set(effective, &[REAL, EFFECTIVE, SAVED]) =>
        {
            let new = or_now(effective, EFFECTIVE);
            let sets_saved = real != UNCHANGED || (effective != UNCHANGED && effective != now[REAL]);
            [or_now(real, REAL), new, if sets_saved { new } else { now[SAVED] }]
        }
        Ids::Three(real, effective, saved)
            if [real, effective, saved].iter().all(|&id| may_set(id, &[REAL, EFFECTIVE, SAVED])) =>
        {
            [or_now(real, REAL), or_now(effective, EFFECTIVE), or_now(saved, SAVED)]
        }
        _ => return Err(Errno::EPERM),
    };
    Ok([real, effective, saved, effective])
}

impl Credentials {
    /// Returns the superuser's credentials.
    pub fn root() -> Self {
        Self {
            uids: [0; 4],
            gids: [0; 4],
            groups: Arc::default(),
            permitted: ALL,
            effective: ALL,
            inheritable: 0,
            bounding: ALL,
            ambient: 0,
            keep_caps: false,
        }
    }

    /// Returns whether the capability (such as `CAP_KILL`) is effective.
    pub fn has(&self, capability: u32) -> bool {
        self.effective & cap(capability) != 0
    }

    /// Checks that the capability is effective.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn needs(&self, capability: u32) -> Result<(), Errno> {
        if self.has(capability) { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// Returns the IDs and capabilities by which the kernel checks access to files: the file-system
    /// IDs with the effective capabilities.
    pub fn file_credentials(&self) -> FileCredentials {
        FileCredentials {
            uid: self.uids[id_index::FS],
            gid: self.gids[id_index::FS],
            groups: self.groups.clone(),
            caps: self.effective,
        }
    }

    /// Returns the credentials that `access` checks: the real IDs, with the permitted capabilities
    /// if the real user is root.
    pub fn real_credentials(&self) -> FileCredentials {
        let caps = if self.uids[REAL] == 0 { self.permitted } else { 0 };
        FileCredentials { uid: self.uids[REAL], gid: self.gids[REAL], groups: self.groups.clone(), caps }
    }

    /// Implements `setuid`, `setreuid` and `setresuid`.
    ///
    /// # Errors
    /// `EPERM`; `EINVAL`: an invalid ID.
    pub fn set_uids(&mut self, wanted: Ids) -> Result<(), Errno> {
        let before = self.uids;
        self.uids = changed_ids(before, wanted, self.has(abi::CAP_SETUID))?;
        let root = |ids: IdSet| ids[..3].contains(&0);
        if root(before) && !root(self.uids) {
            if !self.keep_caps {
                (self.permitted, self.effective) = (0, 0);
            }
            self.ambient = 0;
        }
        match (before[EFFECTIVE] == 0, self.uids[EFFECTIVE] == 0) {
            (true, false) => self.effective = 0,
            (false, true) => self.effective = self.permitted,
            _ => {}
        }
        Ok(())
    }

    /// Implements `setgid`, `setregid` and `setresgid`.
    ///
    /// # Errors
    /// `EPERM`; `EINVAL`: an invalid ID.
    pub fn set_gids(&mut self, wanted: Ids) -> Result<(), Errno> {
        self.gids = changed_ids(self.gids, wanted, self.has(abi::CAP_SETGID))?;
        Ok(())
    }

    /// Implements `setfsuid`. Returns the previous ID. Without the right to set `id`, changes
    /// nothing and reports no error.
    pub fn set_fsuid(&mut self, id: u32) -> u32 {
        let before = self.uids[id_index::FS];
        if id != UNCHANGED && (self.has(abi::CAP_SETUID) || self.uids.contains(&id)) {
            self.uids[id_index::FS] = id;
            match (before == 0, id == 0) {
                (true, false) => self.effective &= !FS_CAPS,
                (false, true) => self.effective |= self.permitted & FS_CAPS,
                _ => {}
            }
        }
        before
    }

    /// Implements `setfsgid`. Returns the previous ID. Without the right to set `id`, changes
    /// nothing and reports no error.
    pub fn set_fsgid(&mut self, id: u32) -> u32 {
        let before = self.gids[id_index::FS];
        if id != UNCHANGED && (self.has(abi::CAP_SETGID) || self.gids.contains(&id)) {
            self.gids[id_index::FS] = id;
        }
        before
    }

    /// Implements `setgroups`.
    ///
    /// # Errors
    /// `EPERM`; `EINVAL`: too many groups, or an invalid ID.
    pub fn set_groups(&mut self, groups: Arc<Vec<u32>>) -> Result<(), Errno> {
        self.needs(abi::CAP_SETGID)?;
        if groups.len() > NGROUPS_MAX || groups.contains(&UNCHANGED) {
            return Err(Errno::EINVAL);
        }
        self.groups = groups;
        Ok(())
    }

    /// Implements `capset`: permitted capabilities can only be dropped, and effective ones are a
    /// subset of them.
    ///
    /// # Errors
    /// `EPERM`: `permitted` has a capability that is not permitted now, `effective` one that is not
    /// in `permitted`, or `inheritable` one that the thread may not pass on.
    pub fn set_capabilities(&mut self, effective: Caps, permitted: Caps, inheritable: Caps) -> Result<(), Errno> {
        let [effective, permitted, inheritable] = [effective & ALL, permitted & ALL, inheritable & ALL];
        let mut inherits = self.inheritable | self.bounding;
        if !self.has(abi::CAP_SETPCAP) {
            inherits &= self.inheritable | self.permitted;
        }
        if inheritable & !inherits != 0 || permitted & !self.permitted != 0 || effective & !permitted != 0 {
            return Err(Errno::EPERM);
        }
        (self.effective, self.permitted, self.inheritable) = (effective, permitted, inheritable);
        self.ambient &= permitted & inheritable;
        Ok(())
    }

    /// Returns the credentials after `execve`. With `honor_set_id`, the set-user-ID and
    /// set-group-ID bits of the file take effect.
    pub fn after_exec(&self, file: &Meta, honor_set_id: bool) -> Self {
        let mut new = self.clone();
        if honor_set_id && file.mode & meta::SET_UID != 0 {
            new.uids[EFFECTIVE] = file.uid;
        }
        const GROUP_EXECUTES: u32 = 0o010;
        if honor_set_id && file.mode & meta::SET_GID != 0 && file.mode & GROUP_EXECUTES != 0 {
            new.gids[EFFECTIVE] = file.gid;
        }
        for ids in [&mut new.uids, &mut new.gids] {
            (ids[SAVED], ids[id_index::FS]) = (ids[EFFECTIVE], ids[EFFECTIVE]);
        }
        let changed = new.uids != self.uids || new.gids != self.gids;
        if changed {
            new.ambient = 0;
        }
        let root = new.uids[REAL] == 0 || new.uids[EFFECTIVE] == 0;
        new.permitted = if root { new.inheritable | new.bounding } else { new.ambient };
        new.effective = if new.uids[EFFECTIVE] == 0 { new.permitted } else { new.ambient };
        new.keep_caps = false;
        new
    }

    /// Returns whether a thread with these credentials may send signals to a process with the
    /// credentials `other`.
    pub fn may_signal(&self, other: &Credentials) -> bool {
        let own = [self.uids[REAL], self.uids[EFFECTIVE]];
        self.has(abi::CAP_KILL) || own.contains(&other.uids[REAL]) || own.contains(&other.uids[SAVED])
    }

    /// Returns whether a thread with these credentials may change the scheduling of a thread with
    /// the credentials `other`.
    pub fn may_schedule(&self, other: &Credentials) -> bool {
        let own = self.uids[EFFECTIVE];
        self.has(abi::CAP_SYS_NICE) || own == other.uids[REAL] || own == other.uids[EFFECTIVE]
    }

    /// Returns whether the real, effective and saved UIDs of `other` all equal the real UID of
    /// these credentials, and its GIDs the real GID. If so, a thread with these credentials may
    /// change the resource limits of a process with `other`, and trace it.
    pub fn matches(&self, other: &Credentials) -> bool {
        let all = |own: IdSet, other_ids: IdSet| other_ids[..3].iter().all(|id| *id == own[REAL]);
        all(self.uids, other.uids) && all(self.gids, other.gids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Kind;
    use crate::fs::meta::Device;

    fn user(id: u32) -> Credentials {
        let mut user = Credentials::root();
        user.set_gids(Ids::All(id)).unwrap();
        user.set_uids(Ids::All(id)).unwrap();
        user
    }

    #[test]
    fn root_that_sets_all_ids_cannot_return() {
        let mut user = user(1000);
        assert_eq!((user.uids, user.gids), ([1000; 4], [1000; 4]));
        assert_eq!((user.permitted, user.effective), (0, 0));
        assert_eq!(user.set_uids(Ids::All(0)), Err(Errno::EPERM));
        assert_eq!(user.set_gids(Ids::All(0)), Err(Errno::EPERM));
        assert_eq!(user.set_groups(Arc::new(alloc::vec![1])), Err(Errno::EPERM));
        assert_eq!(user.set_uids(Ids::All(UNCHANGED)), Err(Errno::EINVAL));
    }

    #[test]
    fn the_saved_id_allows_the_way_back() {
        let mut user = Credentials::root();
        user.set_uids(Ids::Three(UNCHANGED, 1000, UNCHANGED)).unwrap();
        assert_eq!((user.uids, user.permitted, user.effective), ([0, 1000, 0, 1000], ALL, 0));
        user.set_uids(Ids::All(0)).unwrap();
        assert_eq!((user.uids, user.effective), ([0; 4], ALL));
        // The saved ID follows the effective one when the real one is set.
        user.set_uids(Ids::Two(1000, 0)).unwrap();
        assert_eq!(user.uids, [1000, 0, 0, 0]);
        user.set_uids(Ids::Two(UNCHANGED, 1000)).unwrap();
        assert_eq!(user.uids, [1000, 1000, 0, 1000]);
        user.set_uids(Ids::Two(UNCHANGED, 0)).unwrap();
        assert_eq!(user.uids[EFFECTIVE], 0);
    }

    /// Without the capability, a new ID must be one of the present ones; `setreuid` does not accept
    /// the saved one as the real one.
    #[test]
    fn an_unprivileged_user_can_only_permute_its_ids() {
        let mut user = user(7);
        user.uids = [7, 8, 9, 8];
        assert_eq!(user.set_uids(Ids::Two(9, UNCHANGED)), Err(Errno::EPERM));
        assert_eq!(user.set_uids(Ids::Three(10, UNCHANGED, UNCHANGED)), Err(Errno::EPERM));
        user.set_uids(Ids::Two(8, 7)).unwrap();
        assert_eq!(user.uids, [8, 7, 7, 7]);
    }

    #[test]
    fn file_capabilities_follow_the_fs_uid() {
        let mut user = Credentials::root();
        assert_eq!(user.set_fsuid(5), 0);
        assert!(!user.has(abi::CAP_DAC_OVERRIDE) && user.has(abi::CAP_KILL));
        assert_eq!((user.set_fsuid(UNCHANGED), user.set_fsuid(0)), (5, 5));
        assert_eq!(user.effective, ALL);
        let mut user = self::user(5);
        assert_eq!((user.set_fsuid(0), user.uids[id_index::FS]), (5, 5));
    }

    #[test]
    fn permitted_capabilities_are_only_dropped() {
        let mut root = Credentials::root();
        let kill = cap(abi::CAP_KILL);
        root.set_capabilities(0, kill, 0).unwrap();
        assert!(!root.has(abi::CAP_KILL));
        root.set_capabilities(kill, kill, 0).unwrap();
        assert!(root.has(abi::CAP_KILL));
        assert_eq!(root.set_capabilities(kill, ALL, 0), Err(Errno::EPERM));
        assert_eq!(root.set_capabilities(kill, 0, 0), Err(Errno::EPERM));
    }

    #[test]
    fn set_user_id_programs_gain_capabilities() {
        let mut file = Meta::new(Device::default(), 1, Kind::Regular, 0o4755);
        let user = user(5);
        let gained = user.after_exec(&file, true);
        assert_eq!((gained.uids, gained.effective), ([5, 0, 0, 0], ALL));
        assert_eq!(user.after_exec(&file, false).uids, [5; 4]);
        file.mode = 0o755;
        assert_eq!(Credentials::root().after_exec(&file, true).effective, ALL);
        assert_eq!(user.after_exec(&file, true).effective, 0);
    }

    #[test]
    fn signals_need_the_same_user_or_a_capability() {
        let (root, one, other) = (Credentials::root(), user(1), user(2));
        assert!(root.may_signal(&one) && one.may_signal(&one));
        assert!(!one.may_signal(&other) && !one.may_signal(&root));
        let mut suid = root.clone();
        suid.uids = [1, 0, 0, 0];
        assert!(one.may_signal(&suid), "the real UID is the sender's");
    }
}
