#include "zero/exchange/safetensors_header.hpp"

#include "base/bounded_file.hpp"
#include "zero/config/json_text.hpp"

#include <json/json.h>
#include <algorithm>
#include <iterator>
#include <memory>
#include <tuple>

namespace penstock::zero::exchange {

namespace {

constexpr const char* operation = "SafetensorsHeader::read";
constexpr std::uint64_t length_bytes = 8;

/// Values and members of a header, at most: a parsed value takes about 100 bytes.
constexpr std::ptrdiff_t marks_max = 1 << 22;
constexpr std::size_t dimensions_max = 64;

struct ElementType {
  std::string_view name;
  std::uint32_t bits;
  bool is_floating_point;
};
constexpr ElementType element_types[] = {
    {"F64", 64, true},     {"F32", 32, true},    {"F16", 16, true},     {"BF16", 16, true},
    {"F8_E4M3", 8, true},  {"F8_E5M2", 8, true}, {"F8_E8M0", 8, false}, {"F6_E2M3", 6, false},
    {"F6_E3M2", 6, false}, {"F4", 4, false},     {"I64", 64, false},    {"U64", 64, false},
    {"I32", 32, false},    {"U32", 32, false},   {"I16", 16, false},    {"U16", 16, false},
    {"I8", 8, false},      {"U8", 8, false},     {"BOOL", 8, false},    {"C64", 64, false},
};

const ElementType* find_type(std::string_view name) {
  const auto found = std::find_if(std::begin(element_types), std::end(element_types),
                                  [&](const ElementType& type) { return type.name == name; });
  return found == std::end(element_types) ? nullptr : found;
}

/// A text of a file as messages show it.
std::string shown(const std::string& text) {
  constexpr std::size_t most = 80;
  return config::printable(text.size() <= most ? text : text.substr(0, most - 3) + "...");
}

/// 768, but not 768.0.
bool is_count(const Json::Value& json) {
  return (json.type() == Json::intValue || json.type() == Json::uintValue) && json.isUInt64();
}

Error damaged(const std::string& file, std::string reason) {
  return Error::invalid_argument(operation).object(file).reason(std::move(reason));
}

/// Reads one header.
class Parser {
 public:
  Parser(std::string_view json, const std::string& file) : json_(json), file_(file) {}

  Result<Json::Value> parse() const {
    const auto is_mark = [](char c) { return c == ',' || c == '{' || c == '['; };
    if (std::count_if(json_.begin(), json_.end(), is_mark) > marks_max) {
      return damaged(file_, "the header has too many values").wanted("at most " + std::to_string(marks_max));
    }
    Json::CharReaderBuilder builder;
    Json::CharReaderBuilder::strictMode(&builder.settings_);
    builder["stackLimit"] = 8;
    const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());
    Json::Value root;
    std::string problems;
    bool parsed = false;
    try {
      parsed = reader->parse(json_.data(), json_.data() + json_.size(), &root, &problems);
    } catch (const Json::Exception&) {
      problems = "values are nested too deep";
    }
    if (parsed && root.isObject()) return root;
    return damaged(file_, "the header is no JSON object")
        .note(shown(problems))
        .advice("give a file that save_file() of safetensors wrote");
  }

  Result<TensorEntry> tensor(const std::string& name, const Json::Value& json) const {
    if (!json.isObject() || json.size() != 3 || !json.isMember("dtype") || !json.isMember("shape") ||
        !json.isMember("data_offsets")) {
      return damaged(name, json, "wanted an object of dtype, shape and data_offsets");
    }
    TensorEntry entry{.name = name};
    const ElementType* type = json["dtype"].isString() ? find_type(json["dtype"].asString()) : nullptr;
    if (type == nullptr) {
      return damaged(name, json["dtype"], "the dtype is unknown")
          .wanted("one of safetensors, such as BF16")
          .got(shown(config::write_json(json["dtype"])));
    }
    entry.dtype = type->name;
    entry.is_floating_point = type->is_floating_point;
    PENSTOCK_TRY(read_shape(json["shape"], entry));
    PENSTOCK_TRY(read_offsets(json["data_offsets"], *type, entry));
    return entry;
  }

  Result<std::map<std::string, std::string>> metadata(const Json::Value& json) const {
    std::map<std::string, std::string> texts;
    bool good = json.isObject();
    for (auto member = json.begin(); good && member != json.end(); ++member) {
      good = member->isString();
      if (good) texts[member.name()] = member->asString();
    }
    if (good) return texts;
    return damaged("__metadata__", json, "wanted an object of texts");
  }

 private:
  Error damaged(const std::string& file, std::string reason) const {
    return exchange::damaged(file, std::move(reason));
  }
  /// Of a tensor; the byte is that of the value in the file.
  Error damaged(const std::string& name, const Json::Value& json, std::string reason) const {
    return exchange::damaged(file_ + ", tensor " + shown(name), std::move(reason))
        .at(FileOffset(length_bytes + static_cast<std::uint64_t>(json.getOffsetStart())));
  }

  Result<void> read_shape(const Json::Value& json, TensorEntry& entry) const {
    if (!json.isArray() || json.size() > dimensions_max) {
      return damaged(entry.name, json, "the shape is no list of at most 64 dimensions");
    }
    std::uint64_t count = 1;
    bool has_zero = false;
    for (const Json::Value& dimension : json) {
      if (!is_count(dimension)) {
        return damaged(entry.name, dimension, "a dimension is no whole number")
            .got(shown(config::write_json(dimension)));
      }
      const std::uint64_t length = dimension.asUInt64();
      entry.shape.push_back(length);
      has_zero = has_zero || length == 0;
      if (!has_zero && __builtin_mul_overflow(count, length, &count)) {
        return damaged(entry.name, json, "the shape has more elements than fit into 64 bits");
      }
    }
    entry.count = ElementCount(has_zero ? 0 : count);
    return ok();
  }

  Result<void> read_offsets(const Json::Value& json, const ElementType& type, TensorEntry& entry) const {
    if (!json.isArray() || json.size() != 2 || !is_count(json[0]) || !is_count(json[1])) {
      return damaged(entry.name, json, "data_offsets are not two whole numbers");
    }
    entry.begin = ByteCount(json[0].asUInt64());
    entry.end = ByteCount(json[1].asUInt64());
    std::uint64_t bits = 0;
    const bool overflow = __builtin_mul_overflow(entry.count.value(), std::uint64_t{type.bits}, &bits);
    if (overflow || bits % 8 != 0) {
      return damaged(entry.name, json, "the shape has no whole number of bytes in 64 bits");
    }
    if (entry.begin <= entry.end && entry.end - entry.begin == ByteCount(bits / 8)) return ok();
    return damaged(entry.name, json, "data_offsets do not have the length of the shape")
        .wanted(std::to_string(bits / 8) + " bytes")
        .got("from " + std::to_string(entry.begin.value()) + " to " + std::to_string(entry.end.value()));
  }

  std::string_view json_;
  const std::string& file_;
};

/// Checks that the tensors, in the order of their bytes, follow each other without holes.
Result<void> check_order(const std::vector<TensorEntry>& tensors, const std::string& file) {
  ByteCount end;
  for (const TensorEntry& entry : tensors) {
    if (entry.begin == end) {
      end = entry.end;
      continue;
    }
    return damaged(file + ", tensor " + shown(entry.name), entry.begin > end
                                                               ? "there is a hole before its bytes"
                                                               : "its bytes overlap those of another tensor")
        .wanted("to begin at " + std::to_string(end.value()))
        .got(std::to_string(entry.begin.value()));
  }
  return ok();
}

}  // namespace

Result<ByteCount> SafetensorsHeader::length_of(std::string_view first_bytes, ByteCount file,
                                               const std::string& name) {
  if (first_bytes.size() < length_bytes) {
    return Error(ErrorCode::truncated, operation)
        .object(name)
        .reason("the file is too short for a safetensors header")
        .wanted("8 bytes for its length")
        .got(ByteCount(first_bytes.size()));
  }
  std::uint64_t length = 0;
  for (std::size_t i = length_bytes; i-- > 0;)
    length = length << 8 | static_cast<unsigned char>(first_bytes[i]);
  if (length == 0 || length > length_max.value()) {
    return damaged(name, "the file is no safetensors file: its first 8 bytes are not the length of a header")
        .wanted("from 1 to " + std::to_string(length_max.value()))
        .got(length)
        .advice("give a .safetensors file, its index, a layout file or the name of a preset");
  }
  if (file.value() < length_bytes || length > file.value() - length_bytes) {
    return Error(ErrorCode::truncated, operation)
        .object(name)
        .reason("the file ends within its header")
        .wanted(ByteCount(length + length_bytes))
        .got(file)
        .advice("download it again; the header alone suffices");
  }
  return ByteCount(length);
}

Result<SafetensorsHeader> SafetensorsHeader::parse(std::string_view json, ByteCount data,
                                                   const std::string& name) {
  const Parser parser(json, name);
  PENSTOCK_TRY_ASSIGN(const Json::Value root, parser.parse());
  SafetensorsHeader header;
  for (auto member = root.begin(); member != root.end(); ++member) {
    if (member.name() == "__metadata__") {
      PENSTOCK_TRY_ASSIGN(header.metadata, parser.metadata(*member));
      continue;
    }
    PENSTOCK_TRY_ASSIGN(TensorEntry entry, parser.tensor(member.name(), *member));
    header.tensors.push_back(std::move(entry));
  }
  if (header.tensors.empty()) return damaged(name, "the header has no tensors");
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  PENSTOCK_TRY(check_order(header.tensors, name));
  header.data = header.tensors.back().end;
  header.has_data = data == header.data;
  if (data.is_zero() || data == header.data) return header;
  if (data < header.data) {
    return Error(ErrorCode::truncated, operation)
        .object(name)
        .reason("the file is shorter than its tensors")
        .wanted(header.data)
        .got(data)
        .advice("download it again");
  }
  return damaged(name, "the file is longer than its tensors").wanted(header.data).got(data);
}

Result<SafetensorsHeader> SafetensorsHeader::read(const std::filesystem::path& path) {
  PENSTOCK_TRY_ASSIGN(BoundedFile file, BoundedFile::open(operation, path));
  PENSTOCK_TRY_ASSIGN(const std::string first, file.read(std::min(file.size(), ByteCount(length_bytes))));
  PENSTOCK_TRY_ASSIGN(const ByteCount length, length_of(first, file.size(), path.string()));
  PENSTOCK_TRY_ASSIGN(const std::string json, file.read(length));
  const ByteCount begin = length + ByteCount(length_bytes);
  PENSTOCK_TRY_ASSIGN(SafetensorsHeader header, parse(json, file.size() - begin, path.string()));
  header.begin = FileOffset(begin.value());
  return header;
}

}  // namespace penstock::zero::exchange
