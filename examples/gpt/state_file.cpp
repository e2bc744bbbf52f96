#include "gpt/state_file.hpp"

#include <penstock/tiers/io/io_engine.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <optional>

namespace gpt {

using namespace penstock;  // NOLINT: an example reads better so
using cpu_adam::StateKind;

namespace {

/// safetensors: the length of the header, in 8 bytes, then the header, which is JSON, then the tensors.
using HeaderLength = std::uint64_t;

/// The header begins with the progress, which has the same length in every file.
std::string text_of(const StateFile::Progress& progress) {
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), R"({"__metadata__":{"steps":"%-20llu","updates":"%-20llu",)",
                static_cast<unsigned long long>(progress.steps),
                static_cast<unsigned long long>(progress.updates));
  return text.data();
}

std::optional<StateFile::Progress> progress_of(const std::string& text) {
  unsigned long long steps = 0, updates = 0;
  const int read = std::sscanf(text.c_str(), R"({"__metadata__":{"steps":"%20llu ","updates":"%20llu ",)",
                               &steps, &updates);
  if (read != 2) return std::nullopt;
  return StateFile::Progress{.steps = steps, .updates = updates};
}

/// What the parameters do not tell of a model.
std::string facts_of(const ModelConfig& model) {
  std::string facts = "heads " + std::to_string(model.heads);
  if (model.lora) facts += ", lora alpha " + std::to_string(model.lora->alpha);
  return facts;
}

/// The whole parameters that are trained.
std::map<std::string, ElementCount> trained_of(const ModelConfig& model) {
  std::map<std::string, ElementCount> counts;
  const ModelDescription description(model);
  for (const UnitDescription& unit : description.units()) {
    for (const ParameterDescription& parameter : unit.parameters) {
      if (!parameter.frozen) counts[parameter.path] += parameter.count;
    }
  }
  return counts;
}

std::string name_of(const std::string& path, StateKind kind) {
  if (kind == StateKind::master) return path;
  return path + "." + std::string(cpu_adam::to_string(kind));
}

}  // namespace

StateFile::StateFile(std::filesystem::path path, const ModelConfig& model) : path_(std::move(path)) {
  tensors_ = R"("model":")" + facts_of(model) + "\"}";
  for (const auto& [parameter, count] : trained_of(model)) {
    for (const StateKind kind : cpu_adam::all_states) {
      first_bytes_[{parameter, kind}] = data_.value();
      const ByteCount end = data_ + size_of(DType::fp32) * count.value();
      tensors_ += ",\n\"" + name_of(parameter, kind) + R"(":{"dtype":"F32","shape":[)" +
                  std::to_string(count.value()) + R"(],"data_offsets":[)" + std::to_string(data_.value()) +
                  "," + std::to_string(end.value()) + "]}";
      data_ = end;
    }
  }
  tensors_ += "}";
  // The tensors begin at a multiple of 8 bytes; JSON may end with spaces.
  while (!is_aligned(header_size(), Alignment(8))) tensors_ += " ";
}

ByteCount StateFile::header_size() const {
  return ByteCount(sizeof(HeaderLength) + text_of({}).size() + tensors_.size());
}

Result<StateFile> StateFile::create(const std::filesystem::path& path, const ModelConfig& model) {
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed))
    return penstock::Error::invalid_argument("StateFile::create")
        .object(path.string())
        .reason("it is a directory");
  StateFile made(path, model);
  tiers::FileSystem& files = tiers::real_file_system();
  (void)files.remove(made.unfinished());  // of a training that did not end
  PENSTOCK_TRY_ASSIGN(made.file_,
                      files.create(made.unfinished(), made.header_size() + made.data_, tiers::DirectIo::off));
  return made;
}

Result<StateFile> StateFile::open(const std::filesystem::path& path, const ModelConfig& model) {
  StateFile opened(path, model);
  PENSTOCK_TRY_ASSIGN(opened.file_, tiers::real_file_system().open(path, tiers::DirectIo::off));
  PENSTOCK_TRY_ASSIGN(const ByteCount size, opened.file_.size());
  // No more of the header than is compared, whatever the file's length says.
  std::string header(std::min(opened.header_size(), size).value(), '\0');
  PENSTOCK_TRY(opened.file_.read(FileOffset(0), HostSpan(std::span(header))));
  header.erase(0, sizeof(HeaderLength));
  const auto progress = progress_of(header);
  if (!progress) {
    return Error::invalid_argument("StateFile::open")
        .object(path.string())
        .reason("it is no file of a training's states")
        .advice("write one with gpt_train --save");
  }
  opened.progress_ = *progress;
  PENSTOCK_TRY(opened.check(header.substr(text_of({}).size())));
  const ByteCount wanted = opened.header_size() + opened.data_;
  if (size == wanted) return opened;
  return Error(ErrorCode::truncated, "StateFile::open").object(path.string()).wanted(wanted).got(size);
}

Result<void> StateFile::check(const std::string& got) const {
  const auto differ = std::ranges::mismatch(tensors_, got);
  if (differ.in1 == tensors_.end()) return ok();
  // Both texts are a line for each tensor, after one of the model.
  const auto at = static_cast<std::size_t>(differ.in1 - tensors_.begin());
  const std::size_t line = tensors_.rfind('\n', at) + 1;  // of the first: 0
  const auto shown = [line](const std::string& text) {
    return text.substr(line, text.find('\n', line) - line);
  };
  return Error::invalid_argument("StateFile::open")
      .object(path_.string())
      .reason("it has the states of another model")
      .wanted(shown(tensors_))
      .got(shown(got))
      .advice(
          "give the shape with which it was trained: --preset, --layers, --width, --heads, --context, "
          "--lora");
}

FileOffset StateFile::place(const ParameterDescription& parameter, StateKind kind,
                            std::uint64_t first) const {
  return FileOffset(header_size().value() + first_bytes_.at({parameter.path, kind}) +
                    (parameter.first + first) * sizeof(float));
}

Result<void> StateFile::read(const ParameterDescription& parameter, StateKind kind, std::uint64_t first,
                             std::span<float> values) const {
  const std::lock_guard lock(*one_at_a_time_);
  return file_.read(place(parameter, kind, first), HostSpan(values));
}

Result<void> StateFile::write(const ParameterDescription& parameter, StateKind kind, std::uint64_t first,
                              std::span<const float> values) {
  const std::lock_guard lock(*one_at_a_time_);
  return file_.write(place(parameter, kind, first), ConstHostSpan(values));
}

Result<void> StateFile::finish(const Progress& progress) {
  const std::string header = text_of(progress) + tensors_;
  const HeaderLength length = header.size();
  PENSTOCK_TRY(file_.write(FileOffset(0), ConstHostSpan(std::span(&length, 1))));
  PENSTOCK_TRY(file_.write(FileOffset(sizeof length), ConstHostSpan(std::span(header))));
  PENSTOCK_TRY(file_.sync());
  tiers::FileSystem& files = tiers::real_file_system();
  PENSTOCK_TRY(files.rename(unfinished(), path_));
  const std::filesystem::path directory = path_.parent_path();
  return files.sync_directory(directory.empty() ? "." : directory);
}

}  // namespace gpt
