#include "zero/exchange/safetensors_writer.hpp"

#include "zero/exchange/safetensors_header.hpp"

#include <penstock/base/check.hpp>

#include <json/json.h>
#include <algorithm>
#include <cstdio>
#include <utility>

namespace penstock::zero::exchange {

namespace {

constexpr const char* operation = "SafetensorsWriter::create";
constexpr std::uint64_t length_bytes = 8;

ConstHostSpan bytes_of(const std::string& text) {
  return ConstHostSpan(std::span(text));
}

std::string json_text(const Json::Value& json, const char* indentation) {
  Json::StreamWriterBuilder writer;
  writer["indentation"] = indentation;
  writer["emitUTF8"] = true;
  return Json::writeString(writer, json);
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::fp32: return "F32";
    case DType::bf16: return "BF16";
    case DType::fp16: return "F16";
  }
  return "unknown";
}

Result<SafetensorsWriter> SafetensorsWriter::create(Options options, std::vector<TensorToWrite> tensors) {
  if (options.shard_max.is_zero())
    return Error::invalid_argument(operation).object("shard_max").wanted("more than 0").got(ByteCount());
  if (tensors.empty()) return Error::invalid_argument(operation).object("tensors").reason("there are none");
  SafetensorsWriter writer(std::move(options));
  writer.tensors_ = std::move(tensors);
  for (const TensorToWrite& tensor : writer.tensors_) {
    PENSTOCK_TRY_ASSIGN(const ByteCount bytes, penstock::bytes_of(tensor.count, tensor.dtype));
    if (writer.size_ + bytes < bytes) {
      return Error::invalid_argument(operation)
          .object(tensor.name)
          .reason("the tensors have more bytes than fit into 64 bits");
    }
    writer.size_ += bytes;
  }
  writer.divide();
  for (Shard& shard : writer.shards_) {
    PENSTOCK_TRY_ASSIGN(shard.header, writer.header_of(shard));
  }
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  for (Shard& shard : shards_) shard.file = tiers::File();
  for (const std::filesystem::path& path : created_) (void)options_.files->remove(path);
}

void SafetensorsWriter::divide() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const ByteCount bytes = size_of(tensors_[i].dtype) * tensors_[i].count.value();
    if (shards_.empty() || bytes > options_.shard_max || shards_.back().size > options_.shard_max - bytes) {
      shards_.push_back({.first = i});
    }
    Shard& shard = shards_.back();
    places_.push_back({shards_.size() - 1, shard.size});
    shard.size += bytes;
    shard.unwritten = shard.size;
    shard.end = i + 1;
  }
}

Result<std::string> SafetensorsWriter::header_of(const Shard& shard) const {
  Json::Value json(Json::objectValue);
  for (const auto& [key, value] : options_.metadata) json["__metadata__"][key] = value;
  for (std::size_t i = shard.first; i < shard.end; ++i) {
    const TensorToWrite& tensor = tensors_[i];
    Json::Value& entry = json[tensor.name];
    entry["dtype"] = std::string(safetensors_name(tensor.dtype));
    entry["shape"] = Json::Value(Json::arrayValue);
    for (const std::uint64_t length : tensor.shape) entry["shape"].append(Json::UInt64{length});
    const ByteCount begin = places_[i].begin, end = begin + size_of(tensor.dtype) * tensor.count.value();
    entry["data_offsets"].append(Json::UInt64{begin.value()});
    entry["data_offsets"].append(Json::UInt64{end.value()});
  }
  std::string text = json_text(json, "");
  text.resize(round_up(text.size(), 8), ' ');  // aligns the tensors
  if (ByteCount(text.size()) > SafetensorsHeader::length_max) {
    return Error::invalid_argument(operation)
        .object(shard_name(static_cast<std::size_t>(&shard - shards_.data())))
        .reason("the format does not allow so long a header")
        .wanted(SafetensorsHeader::length_max)
        .got(ByteCount(text.size()))
        .advice("choose smaller files");
  }
  std::string header;
  for (std::uint64_t i = 0; i < length_bytes; ++i) header += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return header + text;
}

std::string SafetensorsWriter::shard_name(std::size_t shard) const {
  if (!has_index()) return options_.stem + ".safetensors";
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05zu-of-%05zu", shard + 1, shards_.size());
  return options_.stem + numbers + ".safetensors";
}

std::string SafetensorsWriter::index_name() const {
  return options_.stem + ".safetensors.index.json";
}

std::vector<std::string> SafetensorsWriter::names() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < shards_.size(); ++i) names.push_back(shard_name(i));
  if (has_index()) names.push_back(index_name());
  return names;
}

std::string SafetensorsWriter::index_text() const {
  Json::Value json;
  json["metadata"]["total_size"] = Json::UInt64{size_.value()};
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    json["weight_map"][tensors_[i].name] = shard_name(places_[i].shard);
  return json_text(json, "  ") + "\n";
}

std::filesystem::path SafetensorsWriter::temporary(const std::string& name) const {
  return options_.directory / (name + ".partial");
}

Result<tiers::File> SafetensorsWriter::create_file(const std::string& name, ByteCount size) {
  PENSTOCK_TRY_ASSIGN(tiers::File file, options_.files->create(temporary(name), size, tiers::DirectIo::off));
  created_.push_back(temporary(name));
  return file;
}

Result<void> SafetensorsWriter::write(std::size_t tensor, std::uint64_t first, ConstHostSpan bytes) {
  const Place& place = places_[tensor];
  Shard& shard = shards_[place.shard];
  PENSTOCK_CHECK(bytes.size() <= shard.unwritten);
  const ByteCount header(shard.header.size());
  if (shard.unwritten == shard.size) {
    PENSTOCK_TRY_ASSIGN(shard.file, create_file(shard_name(place.shard), header + shard.size));
    PENSTOCK_TRY(shard.file.write(FileOffset(), bytes_of(shard.header)));
  }
  const FileOffset at = FileOffset() + header + place.begin + size_of(tensors_[tensor].dtype) * first;
  PENSTOCK_TRY(shard.file.write(at, bytes));
  shard.unwritten -= bytes.size();
  if (!shard.unwritten.is_zero()) return ok();
  PENSTOCK_TRY(shard.file.sync());
  shard.file = tiers::File();
  return ok();
}

Result<void> SafetensorsWriter::publish(const std::string& name) {
  const std::filesystem::path to = options_.directory / name;
  PENSTOCK_TRY(options_.files->rename(temporary(name), to));
  *std::find(created_.begin(), created_.end(), temporary(name)) = to;
  return ok();
}

Result<void> SafetensorsWriter::finish() {
  for (const Shard& shard : shards_) PENSTOCK_CHECK(shard.unwritten.is_zero());
  if (has_index()) {
    const std::string text = index_text();
    PENSTOCK_TRY_ASSIGN(tiers::File index, create_file(index_name(), ByteCount(text.size())));
    PENSTOCK_TRY(index.write(FileOffset(), bytes_of(text)));
    PENSTOCK_TRY(index.sync());
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) PENSTOCK_TRY(publish(shard_name(i)));
  PENSTOCK_TRY(options_.files->sync_directory(options_.directory));
  if (!has_index()) return ok();
  PENSTOCK_TRY(publish(index_name()));
  return options_.files->sync_directory(options_.directory);
}

}  // namespace penstock::zero::exchange
