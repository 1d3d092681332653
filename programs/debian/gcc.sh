# Seven files compiled and linked by make.
export PATH=/usr/bin:/bin; cd /tmp
for i in 1 2 3 4 5 6; do cat > a$i.c <<X
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int f$i(int n) { char *p = malloc(n); memset(p, $i, n); int s = 0; for (int k = 0; k < n; k++) s += p[k]; free(p); return s; }
X
done
cat > Makefile <<'X'
prog: a1.o a2.o a3.o a4.o a5.o a6.o main.o
	gcc -o $@ $^
X
cat > main.c <<'X'
#include <stdio.h>
int f1(int), f2(int), f3(int), f4(int), f5(int), f6(int);
int main(void) { printf("%d\n", f1(10)+f2(10)+f3(10)+f4(10)+f5(10)+f6(10)); return 0; }
X
make -s CC=gcc CFLAGS=-O1 && ./prog
