//! Whose a program is: its user, its groups, and what of the superuser's power it has
//! (credentials(7), capabilities(7)).
//!
//! Numbers of users and groups come in fours: real, effective, saved, and the one that counts for
//! files, which follows the effective one. The superuser's powers follow the user's numbers, as if
//! no program ever asked otherwise (no securebits).

use crate::capabilities::{ALL, Caps, cap};
use crate::errno::Errno;
use crate::fs::{FileCredentials, Meta, meta};
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as abi;

/// What goes with the number that counts for files.
const FILES: Caps = cap(abi::CAP_CHOWN)
    | cap(abi::CAP_MKNOD)
    | cap(abi::CAP_DAC_OVERRIDE)
    | cap(abi::CAP_DAC_READ_SEARCH)
    | cap(abi::CAP_FOWNER)
    | cap(abi::CAP_FSETID)
    | cap(abi::CAP_LINUX_IMMUTABLE)
    | cap(abi::CAP_MAC_OVERRIDE);

/// The number that stands for "leave it as it is", and is nobody's.
pub const SAME: u32 = u32::MAX;
/// How many groups one may be in besides the own one.
pub const MOST_GROUPS: usize = 65536;

/// Places in a four of numbers.
#[allow(missing_docs)]
pub mod place {
    pub const REAL: usize = 0;
    pub const EFFECTIVE: usize = 1;
    pub const SAVED: usize = 2;
    pub const FILES: usize = 3;
}
use place::{EFFECTIVE, REAL, SAVED};

/// The numbers of a user, or of a group.
pub type Four = [u32; 4];

/// Credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Credentials {
    pub uids: Four,
    pub gids: Four,
    pub groups: Arc<Vec<u32>>,
    pub permitted: Caps,
    pub effective: Caps,
    pub inheritable: Caps,
    pub bounding: Caps,
    pub ambient: Caps,
    /// Whether the powers outlast the change from root to others (`PR_SET_KEEPCAPS`).
    pub keeps: bool,
}

/// What a system call asks for: numbers, of which [`SAME`] leaves one as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// `setuid`, `setgid`.
    All(u32),
    /// `setreuid`, `setregid`: real, effective.
    Two(u32, u32),
    /// `setresuid`, `setresgid`: real, effective, saved.
    Three(u32, u32, u32),
}

/// The numbers after a call.
fn change(now: Four, wanted: Ids, privileged: bool) -> Result<Four, Errno> {
    let own = |id: u32, among: &[usize]| id == SAME || privileged || among.iter().any(|&place| now[place] == id);
    let or = |id: u32, place: usize| if id == SAME { now[place] } else { id };
    let [real, effective, saved] = match wanted {
        Ids::All(SAME) => return Err(Errno::EINVAL),
        Ids::All(id) if privileged => [id; 3],
        Ids::All(id) if own(id, &[REAL, SAVED]) => [now[REAL], id, now[SAVED]],
        Ids::Two(real, effective) if own(real, &[REAL, EFFECTIVE]) && own(effective, &[REAL, EFFECTIVE, SAVED]) => {
            let new = or(effective, EFFECTIVE);
            let saves = real != SAME || (effective != SAME && effective != now[REAL]);
            [or(real, REAL), new, if saves { new } else { now[SAVED] }]
        }
        Ids::Three(real, effective, saved)
            if [real, effective, saved].iter().all(|&id| own(id, &[REAL, EFFECTIVE, SAVED])) =>
        {
            [or(real, REAL), or(effective, EFFECTIVE), or(saved, SAVED)]
        }
        _ => return Err(Errno::EPERM),
    };
    Ok([real, effective, saved, effective])
}

impl Credentials {
    /// The superuser's.
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
            keeps: false,
        }
    }

    /// Whether it has a power (`CAP_KILL` and its kin).
    pub fn has(&self, capability: u32) -> bool {
        self.effective & cap(capability) != 0
    }

    /// # Errors
    /// `EPERM`: it has not.
    pub fn needs(&self, capability: u32) -> Result<(), Errno> {
        if self.has(capability) { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// Who it is to files.
    pub fn who(&self) -> FileCredentials {
        FileCredentials {
            uid: self.uids[place::FILES],
            gid: self.gids[place::FILES],
            groups: self.groups.clone(),
            caps: self.effective,
        }
    }

    /// The same by its real numbers, as `access` asks: the real root with all powers that it may
    /// have.
    pub fn real(&self) -> FileCredentials {
        let caps = if self.uids[REAL] == 0 { self.permitted } else { 0 };
        FileCredentials { uid: self.uids[REAL], gid: self.gids[REAL], groups: self.groups.clone(), caps }
    }

    /// `setuid`, `setreuid`, `setresuid`.
    ///
    /// # Errors
    /// `EPERM`; `EINVAL`: no number.
    pub fn set_users(&mut self, wanted: Ids) -> Result<(), Errno> {
        let before = self.uids;
        self.uids = change(before, wanted, self.has(abi::CAP_SETUID))?;
        let root = |ids: Four| ids[..3].contains(&0);
        if root(before) && !root(self.uids) {
            if !self.keeps {
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

    /// `setgid`, `setregid`, `setresgid`.
    ///
    /// # Errors
    /// `EPERM`; `EINVAL`: no number.
    pub fn set_group_ids(&mut self, wanted: Ids) -> Result<(), Errno> {
        self.gids = change(self.gids, wanted, self.has(abi::CAP_SETGID))?;
        Ok(())
    }

    /// `setfsuid`: the number before. It never fails, it may only do nothing.
    pub fn set_file_user(&mut self, id: u32) -> u32 {
        let before = self.uids[place::FILES];
        if id != SAME && (self.has(abi::CAP_SETUID) || self.uids.contains(&id)) {
            self.uids[place::FILES] = id;
            match (before == 0, id == 0) {
                (true, false) => self.effective &= !FILES,
                (false, true) => self.effective |= self.permitted & FILES,
                _ => {}
            }
        }
        before
    }

    /// `setfsgid`.
    pub fn set_file_group(&mut self, id: u32) -> u32 {
        let before = self.gids[place::FILES];
        if id != SAME && (self.has(abi::CAP_SETGID) || self.gids.contains(&id)) {
            self.gids[place::FILES] = id;
        }
        before
    }

    /// `setgroups`.
    ///
    /// # Errors
    /// `EPERM`; `EINVAL`: too many.
    pub fn set_groups(&mut self, groups: Arc<Vec<u32>>) -> Result<(), Errno> {
        self.needs(abi::CAP_SETGID)?;
        if groups.len() > MOST_GROUPS || groups.contains(&SAME) {
            return Err(Errno::EINVAL);
        }
        self.groups = groups;
        Ok(())
    }

    /// `capset`: powers may be given up, and used again that were not.
    ///
    /// # Errors
    /// `EPERM`: more than there may be.
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

    /// Those of a program that is executed. `gains`: its file may say whose it is (`S_ISUID`).
    pub fn executing(&self, file: &Meta, gains: bool) -> Self {
        let mut new = self.clone();
        if gains && file.mode & meta::SET_UID != 0 {
            new.uids[EFFECTIVE] = file.uid;
        }
        const GROUP_EXECUTES: u32 = 0o010;
        if gains && file.mode & meta::SET_GID != 0 && file.mode & GROUP_EXECUTES != 0 {
            new.gids[EFFECTIVE] = file.gid;
        }
        for ids in [&mut new.uids, &mut new.gids] {
            (ids[SAVED], ids[place::FILES]) = (ids[EFFECTIVE], ids[EFFECTIVE]);
        }
        let changes = new.uids != self.uids || new.gids != self.gids;
        if changes {
            new.ambient = 0;
        }
        let root = new.uids[REAL] == 0 || new.uids[EFFECTIVE] == 0;
        new.permitted = if root { new.inheritable | new.bounding } else { new.ambient };
        new.effective = if new.uids[EFFECTIVE] == 0 { new.permitted } else { new.ambient };
        new.keeps = false;
        new
    }

    /// Whether it may send signals to a process of these credentials.
    pub fn may_signal(&self, other: &Credentials) -> bool {
        let mine = [self.uids[REAL], self.uids[EFFECTIVE]];
        self.has(abi::CAP_KILL) || mine.contains(&other.uids[REAL]) || mine.contains(&other.uids[SAVED])
    }

    /// Whether it may change how another process is scheduled.
    pub fn may_schedule(&self, other: &Credentials) -> bool {
        let mine = self.uids[EFFECTIVE];
        self.has(abi::CAP_SYS_NICE) || mine == other.uids[REAL] || mine == other.uids[EFFECTIVE]
    }

    /// Returns true if this process's real IDs equal all IDs of the other process: it may then
    /// change the other's resource limits and trace it.
    pub fn matches(&self, other: &Credentials) -> bool {
        let all = |mine: Four, theirs: Four| theirs[..3].iter().all(|id| *id == mine[REAL]);
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
        user.set_group_ids(Ids::All(id)).unwrap();
        user.set_users(Ids::All(id)).unwrap();
        user
    }

    #[test]
    fn root_becomes_a_user_for_good() {
        let mut user = user(1000);
        assert_eq!((user.uids, user.gids), ([1000; 4], [1000; 4]));
        assert_eq!((user.permitted, user.effective), (0, 0));
        assert_eq!(user.set_users(Ids::All(0)), Err(Errno::EPERM));
        assert_eq!(user.set_group_ids(Ids::All(0)), Err(Errno::EPERM));
        assert_eq!(user.set_groups(Arc::new(alloc::vec![1])), Err(Errno::EPERM));
        assert_eq!(user.set_users(Ids::All(SAME)), Err(Errno::EINVAL));
    }

    #[test]
    fn the_saved_number_is_the_way_back() {
        let mut user = Credentials::root();
        user.set_users(Ids::Three(SAME, 1000, SAME)).unwrap();
        assert_eq!((user.uids, user.permitted, user.effective), ([0, 1000, 0, 1000], ALL, 0));
        user.set_users(Ids::All(0)).unwrap();
        assert_eq!((user.uids, user.effective), ([0; 4], ALL));
        // The saved number follows the effective one when the real one is set.
        user.set_users(Ids::Two(1000, 0)).unwrap();
        assert_eq!(user.uids, [1000, 0, 0, 0]);
        user.set_users(Ids::Two(SAME, 1000)).unwrap();
        assert_eq!(user.uids, [1000, 1000, 0, 1000]);
        user.set_users(Ids::Two(SAME, 0)).unwrap();
        assert_eq!(user.uids[EFFECTIVE], 0);
    }

    /// Without the power, a number is one that one has; `setreuid` does not take the saved one for
    /// the real one.
    #[test]
    fn numbers_are_swapped_not_invented() {
        let mut user = user(7);
        user.uids = [7, 8, 9, 8];
        assert_eq!(user.set_users(Ids::Two(9, SAME)), Err(Errno::EPERM));
        assert_eq!(user.set_users(Ids::Three(10, SAME, SAME)), Err(Errno::EPERM));
        user.set_users(Ids::Two(8, 7)).unwrap();
        assert_eq!(user.uids, [8, 7, 7, 7]);
    }

    #[test]
    fn the_file_user_takes_powers_over_files_along() {
        let mut user = Credentials::root();
        assert_eq!(user.set_file_user(5), 0);
        assert!(!user.has(abi::CAP_DAC_OVERRIDE) && user.has(abi::CAP_KILL));
        assert_eq!((user.set_file_user(SAME), user.set_file_user(0)), (5, 5));
        assert_eq!(user.effective, ALL);
        let mut user = self::user(5);
        assert_eq!((user.set_file_user(0), user.uids[place::FILES]), (5, 5));
    }

    #[test]
    fn powers_are_given_up_and_not_taken() {
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
    fn programs_of_root_and_of_others() {
        let mut file = Meta::new(Device::default(), 1, Kind::Regular, 0o4755);
        let user = user(5);
        let gained = user.executing(&file, true);
        assert_eq!((gained.uids, gained.effective), ([5, 0, 0, 0], ALL));
        assert_eq!(user.executing(&file, false).uids, [5; 4]);
        file.mode = 0o755;
        assert_eq!(Credentials::root().executing(&file, true).effective, ALL);
        assert_eq!(user.executing(&file, true).effective, 0);
    }

    #[test]
    fn signals_among_users() {
        let (root, one, other) = (Credentials::root(), user(1), user(2));
        assert!(root.may_signal(&one) && one.may_signal(&one));
        assert!(!one.may_signal(&other) && !one.may_signal(&root));
        let mut suid = root.clone();
        suid.uids = [1, 0, 0, 0];
        assert!(one.may_signal(&suid), "it is the real user's");
    }
}
