#include "zero/exchange/tensor_files.hpp"

#include "base/number_text.hpp"
#include "kernels/host_kernels.hpp"
#include "zero/config/json_text.hpp"
#include "zero/config/nearest.hpp"

#include <penstock/base/span.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace penstock::zero::exchange {

namespace {

constexpr const char* operation = "TensorFiles::read";

std::uint64_t element_bytes(std::string_view dtype) {
  return dtype == "F64" ? 8 : dtype == "F32" ? 4 : 2;
}

std::string shape_text(std::span<const std::uint64_t> shape) {
  std::string text = "[";
  for (const std::uint64_t length : shape)
    text.append(text.size() > 1 ? ", " : "").append(std::to_string(length));
  return text + "]";
}

}  // namespace

Result<TensorFiles> TensorFiles::open(const std::filesystem::path& path, const std::string& stem) {
  TensorFiles made;
  PENSTOCK_TRY_ASSIGN(made.files_, read_checkpoint_headers(path, stem));
  for (std::size_t file = 0; file < made.files_.size(); ++file) {
    const SafetensorsHeader& header = made.files_[file].header;
    if (!header.has_data && !header.data.is_zero()) {
      return Error(ErrorCode::truncated, operation)
          .object(made.files_[file].path.string())
          .reason("the file ends with its header")
          .wanted(header.data)
          .got(ByteCount())
          .advice("download the whole file");
    }
    for (std::size_t i = 0; i < header.tensors.size(); ++i) made.places_[header.tensors[i].name] = {file, i};
  }
  return made;
}

std::vector<std::string> TensorFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

Result<void> TensorFiles::check(const std::string& name, ElementCount count,
                                std::span<const std::uint64_t> shape) const {
  const auto found = places_.find(name);
  if (found == places_.end()) {
    std::vector<std::string_view> names;
    for (const auto& [one, place] : places_) names.push_back(one);
    const std::string_view nearest = config::nearest_spelling(name, names);
    return Error(ErrorCode::not_found, operation)
        .object(files_.front().path.string() + (files_.size() > 1 ? " and the files beside it" : ""))
        .reason("a tensor is missing")
        .wanted(config::printable(name))
        .got(nearest.empty() ? std::to_string(places_.size()) + " tensors of other names"
                             : config::printable(std::string(nearest)))
        .advice("rename the tensors, or give the weights of this model");
  }
  const TensorEntry& tensor = entry(found->second);
  const auto wrong = [&] {
    return Error::invalid_argument(operation).object(files_[found->second.file].path.string() + ", tensor " +
                                                     config::printable(name));
  };
  if (tensor.dtype != "F32" && tensor.dtype != "F16" && tensor.dtype != "BF16" && tensor.dtype != "F64")
    return wrong().wanted("F32, F16, BF16 or F64").got(std::string(tensor.dtype)).advice("convert it first");
  if (shape.empty() ? tensor.count == count
                    : std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end()))
    return ok();
  return wrong()
      .reason("the tensor has another shape")
      .wanted(shape.empty() ? std::to_string(count.value()) + " elements" : shape_text(shape))
      .got(shape_text(tensor.shape))
      .advice("give the weights of this model, or correct its layout");
}

Result<void> TensorFiles::read(const std::string& name, std::uint64_t first, std::span<float> values) {
  const Place place = places_.at(name);
  const TensorEntry& tensor = entry(place);
  if (!open_file_ || open_number_ != place.file) {
    PENSTOCK_TRY_ASSIGN(open_file_, BoundedFile::open(operation, files_[place.file].path));
    open_number_ = place.file;
  }
  const ByteCount element(element_bytes(tensor.dtype));
  const FileOffset at = files_[place.file].header.begin + tensor.begin + element * first;
  if (tensor.dtype == "F32") return open_file_->read_at(at, HostSpan(values));

  piece_.resize(values.size());
  const HostSpan piece(reinterpret_cast<std::byte*>(piece_.data()), element * values.size());
  PENSTOCK_TRY(open_file_->read_at(at, piece));
  if (tensor.dtype != "F64") {
    kernels::cast_elements({piece.data(), tensor.dtype == "F16" ? DType::fp16 : DType::bf16},
                           {reinterpret_cast<std::byte*>(values.data()), DType::fp32}, values.size());
    return ok();
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(piece_[i]);
    if (static_cast<double>(values[i]) == piece_[i] || std::isnan(piece_[i])) continue;
    return Error::invalid_argument(operation)
        .object(files_[place.file].path.string() + ", tensor " + config::printable(name) + ", element " +
                std::to_string(first + i))
        .at(at + element * i)
        .reason("the number is not one of fp32, and would be rounded")
        .got(number_text(piece_[i]))
        .advice("round the tensor to F32 first");
  }
  return ok();
}

}  // namespace penstock::zero::exchange
