# bash does what a configure script does, 40 times.
cd /tmp
for i in $(seq 40); do
  echo "int f$i(void){return $i;}" > c$i.c
  if grep -q "f$i" c$i.c && [ "$(wc -l < c$i.c)" = 1 ]; then
    v=$(sed -n 's/.*return \(.*\);.*/\1/p' c$i.c); [ "$v" = $i ] || exit 1
  fi
  case $(uname -s) in Linux) ;; *) exit 1;; esac
  (cd / && expr $i + 1) > out.$i; read x < out.$i; rm -f out.$i c$i.c
done
