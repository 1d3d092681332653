# Files and directories in memory.
mkdir -p tree/a/b/c tree/d
for name in one two three; do
    echo "the file $name" >"tree/a/$name"
    ln -s "../a/$name" "tree/d/$name"
    ln "tree/a/$name" "tree/a/b/hard-$name"
done
dd if=/dev/zero of=tree/zeros bs=4096 count=300 2>/dev/null
wc -c <tree/zeros
find tree | sort
find tree -type l | sort | while read link; do echo "$link: $(readlink "$link"): $(cat "$link")"; done
find tree -name 'hard-*' -exec cat {} \; | sort
mv tree/a/one tree/moved
rm tree/a/b/hard-two
cat tree/d/one 2>/dev/null || echo "a link to nothing"
stat -c '%n %s %h %F' tree/moved tree/a/b/hard-one tree/zeros
cp -r tree copy
diff -r tree/a copy/a && echo same
echo more >>copy/moved
cmp tree/moved copy/moved || echo different
truncate -s 10 copy/zeros && md5sum copy/zeros
chmod 600 copy/moved && stat -c %a copy/moved
du -a copy/a | wc -l
rm -r tree copy && ls
