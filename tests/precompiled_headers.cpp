// Compiled so that its precompiled headers are, see CMakeLists.txt.
