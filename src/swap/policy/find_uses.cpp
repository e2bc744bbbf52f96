#include "swap/policy/find_uses.hpp"

#include "swap/trace_rules.hpp"

#include <deque>
#include <map>
#include <string>
#include <utility>

namespace penstock::swap {

using tiers::TensorId;

Result<std::vector<NextUses::Use>> find_uses(const AccessTrace& trace, const tiers::TensorStore& store) {
  std::map<std::pair<std::string, ByteCount>, std::deque<TensorId>> by_name;
  for (const TensorId tensor : store.tensors()) {
    const auto& description = store.description(tensor);
    by_name[{name_in_trace(description), description.size}].push_back(tensor);
  }
  std::vector<TensorId> found;
  for (const auto& tensor : trace.tensors) {
    const auto refused = [&](const char* reason) {
      return Error::invalid_argument("Runtime::predict")
          .object(tensor.name)
          .reason(reason)
          .wanted(tensor.size)
          .advice("record a trace of this model with this configuration");
    };
    const auto named = by_name.find({tensor.name, tensor.size});
    if (named == by_name.end() || named->second.empty()) {
      const auto other = by_name.lower_bound({tensor.name, ByteCount()});
      const bool has_other =
          named == by_name.end() && other != by_name.end() && other->first.first == tensor.name;
      if (!has_other) return refused("the trace uses a tensor that this runtime does not have");
      return refused("the tensor has another size than in the trace").got(other->first.second);
    }
    found.push_back(named->second.front());
    named->second.pop_front();
  }
  std::vector<NextUses::Use> order;
  order.reserve(trace.uses.size());
  for (const auto& [tensor, access] : trace.uses) order.push_back({found[tensor], access});
  return order;
}

}  // namespace penstock::swap
