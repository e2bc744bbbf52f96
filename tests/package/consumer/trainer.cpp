#include <penstock/zero/engine/engine.hpp>

int main() {
  penstock::zero::ModelLayout model;
  model.units = {{.name = "layer", .parameters = {{"weight", penstock::ElementCount(1000), 0}}}};
  return penstock::zero::plan_memory({}, model, 2, 2).has_value() ? 0 : 1;
}
