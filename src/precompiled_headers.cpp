// Compiled so that its precompiled headers are.
int main() {}
