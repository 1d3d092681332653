# An archive made, compressed, unpacked, summed, copied and removed.
cd /tmp; tar cf a.tar -C /usr/share perl5 && gzip -1 -k a.tar && mkdir x && tar xzf a.tar.gz -C x && find x -type f | xargs -n 50 md5sum | sort | md5sum && cp -r x y && rm -rf x y a.tar*
