#!/bin/sh
# An object compiled for an instruction set that the machine may lack must define nothing but its kernels: a
# weak function in it could be the copy that the linker picks for everybody.
#   isa_objects_test.sh NM OBJECT...
set -eu
nm=$1
shift
status=0
for object in "$@"; do
  case $object in *adam_kernel_x86_64_* | *host_loops_x86_64_*) ;; *) continue ;; esac
  others=$("$nm" --defined-only --extern-only "$object" | grep -v 'adam_kernels_x86_64_\|host_loops_x86_64_' || true)
  if [ -n "$others" ]; then
    printf '%s defines more than its kernels:\n%s\n' "$object" "$others" >&2
    status=1
  fi
done
exit $status
