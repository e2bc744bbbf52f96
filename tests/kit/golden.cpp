#include "kit/golden.hpp"

#include <penstock/base/check.hpp>

#include <json/json.h>
#include <cstring>
#include <fstream>
#include <iterator>

namespace penstock::test {

namespace {

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  PENSTOCK_CHECK(file.is_open());
  return {std::istreambuf_iterator<char>(file), {}};
}

Json::Value parse(std::string_view text) {
  const Json::CharReaderBuilder builder;
  const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());
  Json::Value value;
  PENSTOCK_CHECK(reader->parse(text.data(), text.data() + text.size(), &value, nullptr));
  return value;
}

}  // namespace

std::filesystem::path golden_directory() {
  return PENSTOCK_GOLDEN_DIR;
}

Json::Value golden_json(const std::string& name) {
  return parse(read_all(golden_directory() / name));
}

Safetensors::Safetensors(const std::filesystem::path& path) : file_(read_all(path)) {
  std::uint64_t header_size = 0;
  PENSTOCK_CHECK(file_.size() >= sizeof(header_size));
  std::memcpy(&header_size, file_.data(), sizeof(header_size));
  PENSTOCK_CHECK(header_size <= file_.size() - sizeof(header_size));

  const Json::Value header = parse(std::string_view(file_).substr(sizeof(header_size), header_size));
  const auto payload = std::as_bytes(std::span(file_)).subspan(sizeof(header_size) + header_size);
  for (const std::string& name : header.getMemberNames()) {
    if (name == "__metadata__") continue;
    const Json::Value& entry = header[name];
    const std::uint64_t first = entry["data_offsets"][0].asUInt64(),
                        last = entry["data_offsets"][1].asUInt64();
    PENSTOCK_CHECK(first <= last && last <= payload.size());
    Array array{entry["dtype"].asString(), {}, payload.subspan(first, last - first)};
    for (const Json::Value& extent : entry["shape"]) array.shape.push_back(extent.asUInt64());
    arrays_.emplace(name, std::move(array));
  }
}

void Safetensors::copy(const std::string& name, void* to, std::size_t size) const {
  PENSTOCK_CHECK(size == at(name).bytes.size());
  std::memcpy(to, at(name).bytes.data(), size);
}

}  // namespace penstock::test
