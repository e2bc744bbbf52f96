#include <penstock/swap/access_trace.hpp>

#include "swap/trace_rules.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>

// The lines of a trace file, see docs/policies.md.

namespace penstock::swap {

namespace {

constexpr std::string_view first_line = "penstock-trace 1";
static_assert(first_line.starts_with(trace_begin));
constexpr std::array accesses = {Access::read, Access::modify, Access::overwrite};

std::string quoted(std::string_view text) {
  std::string result = "\"";
  result += text;
  result += '"';
  return result;
}

/// Without spaces.
std::string word_of(tiers::Purpose purpose) {
  std::string word(to_string(purpose));
  std::replace(word.begin(), word.end(), ' ', '_');
  return word;
}

/// "disk,write_behind"
std::string properties_of(const AccessTrace::Tensor& tensor) {
  std::string text = tensor.on_disk ? "disk" : "memory";
  if (tensor.write_behind) text += ",write_behind";
  if (!tensor.retain) text += ",dropped";
  if (tensor.home_in_memory) text += ",home";
  if (tensor.transient) text += ",transient";
  return text;
}

/// The next word of a line, which it loses.
std::string_view take_word(std::string_view& line) {
  const std::size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

/// Reads the lines of a trace one after the other.
class Reader {
 public:
  Result<void> read(std::string_view line) {
    ++number_;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);  // of an editor on Windows
    if (number_ == 1 && line != first_line && line.starts_with(trace_begin))
      return refused("version 1, which this version of Penstock reads", line);
    if (number_ == 1) return line == first_line ? ok() : refused("the first line of a trace", line);
    if (line.empty() || line.front() == '#') return ok();
    std::string_view rest = line;
    const std::string_view kind = take_word(rest);
    if (has_end_) return refused("nothing after the line \"end\"", line);
    if (kind == "label") {
      if (std::exchange(has_label_, true)) return refused("one label", "a second one: " + std::string(rest));
      if (has_control_character(rest)) return refused("a label without control characters", rest);
      trace_.label = rest;
      return ok();
    }
    if (kind == "tensor") return read_tensor(rest);
    if (kind == "use") return read_use(rest);
    if (kind == "end") return read_end(rest);
    return refused("\"label\", \"tensor\", \"use\" or \"end\"", kind);
  }
  Result<AccessTrace> end() && {
    if (number_ == 0) return refused("the first line of a trace", "an empty file");
    if (!has_end_)
      return refused("a last line \"end " + std::to_string(trace_.uses.size()) +
                         "\": the file was cut, or is of a version that wrote none",
                     "the end of the file");
    return std::move(trace_);
  }

 private:
  Error refused(std::string wanted, std::string_view got) const {
    constexpr std::size_t most = 40;  // of a file that is no trace
    return Error::invalid_argument("parse_trace")
        .object("line " + std::to_string(std::max<std::uint64_t>(number_, 1)))
        .wanted(std::move(wanted))
        .got(quoted(got.substr(0, most)))
        .advice("docs/policies.md describes trace files; the first line is " + quoted(first_line));
  }

  template <class Number>
  Result<Number> read_number(std::string_view wanted, std::string_view& rest) const {
    const std::string_view word = take_word(rest);
    Number number{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size()) return refused(std::string(wanted), word);
    return number;
  }

  Result<void> read_tensor(std::string_view rest) {
    AccessTrace::Tensor tensor;
    PENSTOCK_TRY_ASSIGN(const auto size, read_number<std::uint64_t>(size_wanted_, rest));
    tensor.size = ByteCount(size);
    if (size == 0 || tensor.size > trace_tensor_bytes_max) return refused(size_wanted_, std::to_string(size));
    PENSTOCK_TRY(read_properties(take_word(rest), tensor));
    PENSTOCK_TRY_ASSIGN(tensor.purpose, purpose_of(take_word(rest)));
    if (rest.empty() || has_control_character(rest))
      return refused("its name, without control characters", rest);
    tensor.name = rest;
    trace_.tensors.push_back(std::move(tensor));
    return ok();
  }

  Result<void> read_properties(const std::string_view all, AccessTrace::Tensor& tensor) const {
    int places = 0;
    for (std::string_view text = all; !text.empty();) {
      const std::size_t end = std::min(text.find(','), text.size());
      const std::string_view property = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (property == "disk" || property == "memory") {
        tensor.on_disk = property == "disk";
        ++places;
      } else if (property == "write_behind") {
        tensor.write_behind = true;
      } else if (property == "dropped") {
        tensor.retain = false;
      } else if (property == "home") {
        tensor.home_in_memory = true;
      } else if (property == "transient") {
        tensor.transient = true;
      } else {
        return refused("disk, memory, write_behind, dropped, home or transient", property);
      }
    }
    if (places != 1) return refused("disk or memory among its properties", all);
    if (tensor.home_in_memory && !tensor.on_disk) return refused("disk, not memory, with home", all);
    return ok();
  }

  Result<tiers::Purpose> purpose_of(std::string_view word) const {
    std::string all;
    for (std::size_t i = 0; i < tiers::purpose_count; ++i) {
      const std::string each = word_of(static_cast<tiers::Purpose>(i));
      if (each == word) return static_cast<tiers::Purpose>(i);
      all += (i == 0 ? "" : ", ") + each;
    }
    return refused("one of " + all, word);
  }

  Result<void> read_use(std::string_view rest) {
    PENSTOCK_TRY_ASSIGN(const auto tensor, read_number<std::uint32_t>("the number of a tensor", rest));
    if (tensor >= trace_.tensors.size()) {
      return refused("a tensor of the " + std::to_string(trace_.tensors.size()) + " in the lines before",
                     std::to_string(tensor));
    }
    const auto* const access =
        std::find_if(accesses.begin(), accesses.end(), [&](Access each) { return to_string(each) == rest; });
    if (access == accesses.end()) return refused("read, modify or overwrite", rest);
    trace_.uses.push_back({tensor, *access});
    return ok();
  }

  Result<void> read_end(std::string_view rest) {
    PENSTOCK_TRY_ASSIGN(const auto uses, read_number<std::uint64_t>("the number of uses", rest));
    if (!rest.empty()) return refused("nothing after the number of uses", rest);
    if (uses != trace_.uses.size())
      return refused("the number of uses before, " + std::to_string(trace_.uses.size()),
                     std::to_string(uses));
    has_end_ = true;
    return ok();
  }

  const std::string size_wanted_ =
      "its bytes, more than 0, at most " + std::to_string(trace_tensor_bytes_max.value());
  AccessTrace trace_;
  std::uint64_t number_ = 0;  // of the line
  bool has_label_ = false, has_end_ = false;
};

}  // namespace

std::string to_text(const AccessTrace& trace) {
  std::string text(first_line);
  text += '\n';
  if (!trace.label.empty()) text += "label " + trace.label + "\n";
  for (const auto& tensor : trace.tensors) {
    text += "tensor " + std::to_string(tensor.size.value()) + " " + properties_of(tensor) + " " +
            word_of(tensor.purpose) + " " + tensor.name + "\n";
  }
  for (const auto& [tensor, access] : trace.uses) {
    text += "use " + std::to_string(tensor) + " ";
    text += to_string(access);
    text += "\n";
  }
  text += "end " + std::to_string(trace.uses.size()) + "\n";
  return text;
}

Result<AccessTrace> parse_trace(std::string_view text) {
  Reader reader;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    PENSTOCK_TRY(reader.read(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::move(reader).end();
}

}  // namespace penstock::swap
