# A file is either open for writing or run as a program, never both.
reason() { sed 's/.*: //'; }
mkfifo ready gate
cp ../bin/cat busybox-copy
./busybox-copy sh -c 'echo up >ready; read line <gate; echo "the program read $line"' &
read -r up <ready
(echo more >>busybox-copy) 2>&1 | reason
truncate -s 100 busybox-copy 2>&1 | reason
(: >busybox-copy) 2>&1 | reason
cmp busybox-copy ../bin/cat && echo unchanged
mv busybox-copy busybox-moved && cp busybox-moved busybox-copy && echo more >>busybox-copy && echo "another file by that name"
rm busybox-moved
echo "a line" >gate
wait
exec 3>>busybox-copy
(./busybox-copy true) 2>&1 | reason
exec 3>&-
./busybox-copy echo "closed, and run"
