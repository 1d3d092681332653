# 96 files, five commits, a merge, gc, fsck.
cd /tmp && export HOME=/tmp GIT_CONFIG_NOSYSTEM=1; git init -q r && cd r && git config user.email a@b && git config user.name n && git config gc.auto 0
for d in 1 2 3 4 5 6 7 8; do mkdir d$d; for f in 1 2 3 4 5 6 7 8 9 10 11 12; do echo "file $d $f" > d$d/f$f; done; done
git add . && git commit -qm one; for i in 1 2 3; do echo $i >> d1/f1; git commit -qam $i; done
git status --short | wc -l; git log --oneline | wc -l; git diff HEAD~2 --stat | tail -1; git checkout -q -b other HEAD~1 && git merge -q master -m merge; git gc -q && git fsck 2>/dev/null
