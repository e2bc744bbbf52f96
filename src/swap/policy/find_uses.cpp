#include "swap/policy/find_uses.hpp"

#include "swap/trace_rules.hpp"

#include <deque>
#include <string>
#include <unordered_map>

namespace penstock::swap {

using tiers::TensorId;

Result<std::vector<NextUses::Use>> find_uses(const AccessTrace& trace, const tiers::TensorStore& store) {
  std::unordered_map<std::string, std::deque<TensorId>> by_name;
  for (const TensorId tensor : store.tensors())
    by_name[name_in_trace(store.description(tensor).name)].push_back(tensor);
  std::vector<TensorId> found;
  for (const auto& tensor : trace.tensors) {
    const auto refused = [&](const char* reason) {
      return Error::invalid_argument("Runtime::predict")
          .object(tensor.name)
          .reason(reason)
          .wanted(tensor.size)
          .advice("record a trace of this model with this configuration");
    };
    auto& named = by_name[tensor.name];
    if (named.empty()) return refused("the trace uses a tensor that this runtime does not have");
    const ByteCount size = store.description(named.front()).size;
    if (size != tensor.size) return refused("the tensor has another size than in the trace").got(size);
    found.push_back(named.front());
    named.pop_front();
  }
  std::vector<NextUses::Use> order;
  order.reserve(trace.uses.size());
  for (const auto& [tensor, access] : trace.uses) order.push_back({found[tensor], access});
  return order;
}

}  // namespace penstock::swap
