#include <penstock/swap/access_trace.hpp>

#include "base/bounded_file.hpp"
#include "base/replace_file.hpp"
#include "swap/trace_rules.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace penstock::swap {

namespace {

constexpr const char* operation = "check_trace";

/// That of a use; null, if it is not listed.
const AccessTrace::Tensor* tensor_of(const AccessTrace& trace, const AccessTrace::Use& use) {
  return use.tensor < trace.tensors.size() ? &trace.tensors[use.tensor] : nullptr;
}

/// Of a use, or "the end".
std::string describe(const AccessTrace& trace, std::uint64_t use, std::string (*size_text)(ByteCount)) {
  if (use >= trace.uses.size()) return "the end";
  std::string text(to_string(trace.uses[use].access));
  const auto* const tensor = tensor_of(trace, trace.uses[use]);
  if (tensor == nullptr) return text + " of a tensor that is not listed";
  return text + " of " + tensor->name + ", " + size_text(tensor->size) + " of " +
         std::string(to_string(tensor->purpose));
}

bool are_alike(const AccessTrace::Tensor* one, const AccessTrace::Tensor* other) {
  return one != nullptr && other != nullptr && one->name == other->name && one->size == other->size &&
         one->purpose == other->purpose;
}

}  // namespace

Result<void> check_trace(const AccessTrace& trace) {
  constexpr const char* has_control = "it has a line break or another control character";
  if (has_control_character(trace.label))
    return Error::invalid_argument(operation).object("label").reason(has_control).got(trace.label);
  for (std::size_t i = 0; i < trace.tensors.size(); ++i) {
    const auto& tensor = trace.tensors[i];
    const auto refused = [&](const char* member) {
      return Error::invalid_argument(operation).object("tensors[" + std::to_string(i) + "]." + member);
    };
    if (tensor.name.empty()) return refused("name").reason("it is empty");
    if (has_control_character(tensor.name)) return refused("name").reason(has_control).got(tensor.name);
    if (tensor.size.is_zero() || tensor.size > trace_tensor_bytes_max)
      return refused("size")
          .wanted("more than 0, at most " + to_string(trace_tensor_bytes_max))
          .got(tensor.size);
    if (tensor.home_in_memory && !tensor.on_disk)
      return refused("home_in_memory").wanted("false, as the tensor has no place on disk").got("true");
    if (static_cast<std::size_t>(tensor.purpose) >= tiers::purpose_count)
      return refused("purpose").wanted("an enumerator").got(unsigned(tensor.purpose));
  }
  for (std::size_t i = 0; i < trace.uses.size(); ++i) {
    const auto refused = [&](const char* member) {
      return Error::invalid_argument(operation).object("uses[" + std::to_string(i) + "]." + member);
    };
    if (trace.uses[i].tensor >= trace.tensors.size()) {
      return refused("tensor")
          .wanted("less than " + std::to_string(trace.tensors.size()))
          .got(trace.uses[i].tensor);
    }
    if (trace.uses[i].access > Access::overwrite)
      return refused("access").wanted("an enumerator").got(unsigned(trace.uses[i].access));
  }
  return ok();
}

std::string to_string(const TraceDifference& difference) {
  return "use " + std::to_string(difference.use) + ": wanted " + difference.wanted + "; got " +
         difference.got;
}

std::optional<TraceDifference> first_difference(const AccessTrace& expected, const AccessTrace& actual) {
  const auto is_equal = [&](const AccessTrace::Use& one, const AccessTrace::Use& other) {
    return one.access == other.access && are_alike(tensor_of(expected, one), tensor_of(actual, other));
  };
  const auto [one, other] = std::mismatch(expected.uses.begin(), expected.uses.end(), actual.uses.begin(),
                                          actual.uses.end(), is_equal);
  if (one == expected.uses.end() && other == actual.uses.end()) return std::nullopt;
  const auto use = static_cast<std::uint64_t>(one - expected.uses.begin());
  TraceDifference difference{use, describe(expected, use, penstock::to_string),
                             describe(actual, use, penstock::to_string)};
  if (difference.wanted == difference.got)
    difference = {use, describe(expected, use, to_exact_string), describe(actual, use, to_exact_string)};
  return difference;
}

const AccessTrace::Tensor* first_kept_elsewhere(const AccessTrace& expected, const AccessTrace& actual) {
  const std::size_t uses = std::min(expected.uses.size(), actual.uses.size());
  for (std::size_t i = 0; i < uses; ++i) {
    const auto *const one = tensor_of(expected, expected.uses[i]), *const other =
                                                                       tensor_of(actual, actual.uses[i]);
    if (are_alike(one, other) && *one != *other) return one;
  }
  return nullptr;
}

Result<void> save_trace(const AccessTrace& trace, const std::filesystem::path& file) {
  PENSTOCK_TRY(check_trace(trace));
  constexpr FileKind kind{.name = "a trace", .beginnings = std::span(&trace_begin, 1)};
  return replace_file("save_trace", file, to_text(trace), kind);
}

Result<AccessTrace> load_trace(const std::filesystem::path& file) {
  constexpr TextLimit limit{.what = "a trace", .size = 4_GiB, .refusal = ErrorCode::invalid_argument};
  PENSTOCK_TRY_ASSIGN(BoundedFile trace_file, BoundedFile::open("load_trace", file));
  PENSTOCK_TRY_ASSIGN(std::string text,
                      trace_file.read(std::min(trace_file.size(), ByteCount(trace_begin.size()))));
  if (text == trace_begin) {  // or else the rest is not worth its memory
    PENSTOCK_TRY_ASSIGN(const std::string rest, trace_file.read_to_end(limit));
    text += rest;
  }
  auto trace = parse_trace(text);
  if (!trace) return std::move(trace).error().note("file  " + file.string());
  return trace;
}

}  // namespace penstock::swap
