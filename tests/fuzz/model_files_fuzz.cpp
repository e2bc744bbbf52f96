// Headers and layouts of a stranger: most are right but for one value or one byte. What a reader accepts must be
// consistent; what is right must be accepted.
#include "choices.hpp"
#include "kit/safetensors_bytes.hpp"

#include <penstock/base/check.hpp>
#include "zero/estimate/layout_file.hpp"
#include "zero/exchange/safetensors_header.hpp"

#include <array>
#include <set>
#include <string>

namespace {

using penstock::test::Choices;

/// Text with at most one value and one byte that is wrong.
class Text {
 public:
  explicit Text(Choices& choices) : choices_(choices) {
    wrong_value_ = choices.byte() % 2 == 0 ? choices.below(64) : no_value;
  }

  Text& add(const std::string& text) {
    text_.append(text);
    return *this;
  }
  /// One of the values of which one may be replaced by one that is wrong.
  Text& value(const std::string& right) {
    static constexpr std::array wrong = {"0",         "-1",         "1.5",   "7",    "18446744073709551615",
                                         "1e300",     "\"\"",       "\"x\"", "null", "true",
                                         "[1, [2]]",  "{\"a\": 1}", "[]",    "{}",   "9999999999999999999999",
                                         "4294967296"};
    if (values_++ != wrong_value_) return add(right);
    is_right_ = false;
    return add(wrong[choices_.below(wrong.size())]);
  }
  std::string finish() {
    if (choices_.byte() % 4 == 0 && !text_.empty()) {
      char& byte = text_[choices_.below(65536) % text_.size()];
      const char wrong = static_cast<char>(choices_.byte());
      is_right_ = is_right_ && byte == wrong;
      byte = wrong;
    }
    if (choices_.byte() % 16 == 0 && !text_.empty()) {
      text_.resize(choices_.below(65536) % text_.size());
      is_right_ = false;
    }
    return text_;
  }
  [[nodiscard]] bool is_right() const { return is_right_; }

 private:
  static constexpr std::uint64_t no_value = ~std::uint64_t{0};
  Choices& choices_;
  std::string text_;
  std::uint64_t values_ = 0, wrong_value_ = no_value;
  bool is_right_ = true;
};

std::string in_quotes(const std::string& text) {
  std::string out("\"");
  return out.append(text).append("\"");
}

std::string numbered(std::string name, std::uint64_t number) {
  return name.append(std::to_string(number));
}

void add_tensor(Text& text, Choices& choices, std::uint64_t number, std::uint64_t& begin) {
  static constexpr std::array types = {"BF16", "F32", "U8", "I64"};
  penstock::test::FileTensor tensor{.name = {}, .shape = {}, .dtype = types[choices.below(types.size())]};
  text.add(number == 0 ? "" : ",").add(in_quotes(numbered("h.", number))).add(":{\"dtype\":");
  text.value(in_quotes(tensor.dtype)).add(",\"shape\":[");
  for (std::uint64_t i = 0, dimensions = choices.below(4); i < dimensions; ++i) {
    tensor.shape.push_back(choices.below(5));
    text.add(i == 0 ? "" : ",").value(std::to_string(tensor.shape.back()));
  }
  text.add("],\"data_offsets\":[").value(std::to_string(begin)).add(",");
  begin += tensor.bytes();
  text.value(std::to_string(begin)).add("]}");
}

void read_header(Choices& choices) {
  Text text(choices);
  text.add("{");
  std::uint64_t end = 0;
  for (std::uint64_t i = 0, count = choices.below(6) + 1; i < count; ++i) add_tensor(text, choices, i, end);
  const std::string json = text.add("}").finish();
  const auto header = penstock::zero::exchange::SafetensorsHeader::parse(json, {}, "f");
  if (!header) {
    PENSTOCK_CHECK(!text.is_right());
    PENSTOCK_CHECK(!header.error().message().empty());
    return;
  }
  std::uint64_t at = 0;
  std::set<std::string> names;
  for (const auto& tensor : header->tensors) {
    PENSTOCK_CHECK(tensor.begin.value() == at && tensor.end >= tensor.begin);
    at = tensor.end.value();
    std::uint64_t count = 1;
    for (const std::uint64_t length : tensor.shape) count *= length;
    PENSTOCK_CHECK(tensor.count.value() == count);
    PENSTOCK_CHECK(names.insert(tensor.name).second);
  }
  PENSTOCK_CHECK(header->data.value() == at);
}

void add_unit(Text& text, Choices& choices, std::uint64_t number) {
  text.add(number == 0 ? "" : ",").add("{\"name\":").value(in_quotes(numbered("u", number)));
  if (choices.byte() % 4 == 0) text.add(",\"repeat\":").value(std::to_string(choices.below(4) + 1));
  text.add(",\"parameters\":[");
  for (std::uint64_t i = 0, count = choices.below(3) + 1; i < count; ++i) {
    text.add(i == 0 ? "" : ",").add("{\"name\":").value(in_quotes(numbered("p", i)));
    if (choices.byte() % 2 == 0) {
      text.add(",\"count\":").value(std::to_string(choices.below(1000) + 1));
    } else {
      text.add(",\"shape\":[").value(std::to_string(choices.below(9) + 1)).add(",").value("4").add("]");
    }
    if (choices.byte() % 4 == 0) text.add(",\"group\":").value(std::to_string(choices.below(64)));
    text.add("}");
  }
  text.add("]}");
}

void read_layout(Choices& choices) {
  using penstock::zero::estimate::LayoutFile;
  Text text(choices);
  text.add("{\"units\":[{\"name\":\"owner\",\"parameters\":[{\"name\":\"w\",\"count\":8}]}");
  for (std::uint64_t i = 1, count = choices.below(4) + 1; i <= count; ++i) add_unit(text, choices, i);
  if (choices.byte() % 2 == 0) {
    text.add(",{\"name\":\"user\",\"shared\":[{\"unit\":")
        .value("\"owner\"")
        .add(",\"parameter\":")
        .value("\"w\"")
        .add("}]}");
  }
  text.add("]");
  if (choices.byte() % 4 == 0)
    text.add(",\"checkpoints\":{\"count\":").value("3").add(",\"size\":").value("\"4KiB\"").add("}");
  const std::string json = text.add("}").finish();
  const auto layout = LayoutFile::parse(json, "f");
  if (!layout) {
    PENSTOCK_CHECK(!text.is_right());
    PENSTOCK_CHECK(!layout.error().message().empty());
    return;
  }
  PENSTOCK_CHECK(layout->validate().has_value());
  std::uint64_t parameters = 0;
  for (const auto& unit : layout->units) parameters += unit.parameters.size() + unit.shared.size() + 1;
  PENSTOCK_CHECK(parameters <= LayoutFile::parameters_max && layout->groups.size() <= LayoutFile::groups_max);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using penstock::zero::exchange::SafetensorsHeader;
  Choices choices(data, size);
  std::string first(8, '\0');  // a length of about the file's
  for (std::size_t i = 0; i < 2; ++i) first[i] = static_cast<char>(choices.byte());
  if (choices.byte() % 8 == 0) first[choices.below(8)] = static_cast<char>(choices.byte());
  const auto length = SafetensorsHeader::length_of(first, penstock::ByteCount(size), "f");
  PENSTOCK_CHECK(!length || length->value() + 8 <= size);
  // Raw bytes too, which are hardly ever JSON.
  const std::string raw(reinterpret_cast<const char*>(data), size);
  if (choices.byte() % 8 == 0) {
    (void)SafetensorsHeader::parse(raw, {}, "f");
    (void)penstock::zero::estimate::LayoutFile::parse(raw, "f");
  }
  choices.byte() % 2 == 0 ? read_header(choices) : read_layout(choices);
  return 0;
}
