# Cross-compiles for AArch64 and runs the tests in QEMU's user mode: the preset aarch64.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
