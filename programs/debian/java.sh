# A heap of 256 MB, and threads.
java -Xmx256m -Xshare:auto -XX:+UseSerialGC -cp /programs Load
