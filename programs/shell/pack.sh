# Compression and checksums: larger files, and programs that compute.
awk 'BEGIN { for (i = 0; i < 40000; i++) print i * i % 9973, "some text that repeats itself" }' >data
md5sum data
sha256sum data | cut -c 1-32
gzip -c data >data.gz && gunzip -c data.gz | cmp - data && echo gzip
bzip2 -c data | bunzip2 -c | md5sum
mkdir many
for i in $(seq 1 40); do head -n $i data >many/$i; done
tar cf many.tar many && mkdir out && tar xf many.tar -C out && diff -r many out/many && echo tar
cat many/* | sha1sum
find many -type f -size +1k | wc -l
gzip -c many.tar | base64 | base64 -d | gunzip -c | cmp - many.tar && echo base64
