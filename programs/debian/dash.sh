# 100 pipelines of three programs, a listing of /etc, a walk through /usr/share.
i=0
while [ $i -lt 100 ]; do
  x=$(echo line $i | sed s/line/LINE/ | cat)
  [ -n "$x" ] || exit 1
  i=$((i+1))
done
ls -lR /etc | sort | uniq -c | sort -rn | head -3 >/dev/null
find /usr/share -name '*.so' | wc -l
