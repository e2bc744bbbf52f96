#include <penstock/swap/runtime.hpp>

int main() {
  auto runtime = penstock::swap::Runtime::create({.host_budget = penstock::ByteCount(1 << 21)}).value();
  auto tensor = runtime->add({.name = "t", .size = penstock::ByteCount(4096)}, false).value();
  return runtime->acquire(tensor, penstock::swap::Access::overwrite).value().bytes().size().value() == 4096 ? 0 : 1;
}
