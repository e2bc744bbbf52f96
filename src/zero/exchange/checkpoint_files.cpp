#include "zero/exchange/checkpoint_files.hpp"

#include "base/bounded_file.hpp"
#include "zero/config/config_error.hpp"
#include "zero/config/hjson.hpp"

#include <iterator>
#include <map>
#include <set>

namespace penstock::zero::exchange {

namespace {

namespace fs = std::filesystem;
using config::Problem;

constexpr const char* operation = "read_checkpoint_headers";
constexpr std::size_t files_max = 4096;

bool ends_with(const fs::path& path, std::string_view end) {
  return path.native().ends_with(end);
}

/// The weight_map of an index: the file of each tensor.
using WeightMap = std::map<std::string, std::string>;

/// A name in the index's own directory, so that an index cannot make the program read other files.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

Result<WeightMap> parse_index(const std::string& text, const std::string& name) {
  std::vector<Problem> problems;
  const Json::Value root = config::parse_hjson(text, problems);
  const Json::Value none;
  const Json::Value& map = root.isObject() ? root["weight_map"] : none;
  if (problems.empty() && (!map.isObject() || map.empty())) {
    problems.push_back({.path = "weight_map", .text = "wanted an object that has the file of each tensor"});
  }
  WeightMap files;
  const config::LineIndex lines(text);
  for (auto member = map.begin(); problems.empty() && member != map.end(); ++member) {
    if (member->isString() && is_plain_name(member->asString())) {
      files[member.name()] = member->asString();
      continue;
    }
    problems.push_back({.path = "weight_map." + config::printable(member.name()),
                        .line = lines.line_of(member->getOffsetStart()),
                        .text = "wanted the name of a file beside the index"});
  }
  if (problems.empty()) return files;
  return config::to_error(operation, name, std::move(problems), "the index");
}

std::set<std::string> files_of(const WeightMap& map) {
  std::set<std::string> files;
  for (const auto& [tensor, file] : map) files.insert(file);
  return files;
}

/// Checks that the files of an index are there.
Result<void> check_present(const std::set<std::string>& files, const fs::path& index) {
  if (files.size() > files_max) {
    return Error::invalid_argument(operation)
        .object(index.string())
        .reason("the index names too many files")
        .wanted("at most " + std::to_string(files_max))
        .got(files.size());
  }
  std::size_t missing = 0;
  std::string first;
  for (const std::string& file : files) {
    std::error_code error;
    if (fs::exists(index.parent_path() / file, error)) continue;
    if (missing++ == 0) first = config::printable(file);
  }
  if (missing == 0) return ok();
  return Error(ErrorCode::not_found, operation)
      .object(index.string())
      .reason("the index has no shapes, and " +
              std::string(missing == files.size() ? "none" : std::to_string(files.size() - missing)) +
              " of its " + std::to_string(files.size()) + " files is beside it")
      .wanted(first)
      .advice("put the files beside the index; of each, the first 8 bytes and the header suffice");
}

Result<std::vector<CheckpointFile>> read_index(const fs::path& index) {
  PENSTOCK_TRY_ASSIGN(const std::string text, read_text_file(operation, index, {"an index"}));
  PENSTOCK_TRY_ASSIGN(WeightMap wanted, parse_index(text, index.string()));
  const std::set<std::string> files = files_of(wanted);
  PENSTOCK_TRY(check_present(files, index));

  std::vector<CheckpointFile> read;
  for (const std::string& file : files) {
    const fs::path path = index.parent_path() / file;
    PENSTOCK_TRY_ASSIGN(SafetensorsHeader header, SafetensorsHeader::read(path));
    for (const TensorEntry& tensor : header.tensors) {
      const auto found = wanted.find(tensor.name);
      if (found == wanted.end() || found->second != file) {
        return Error::invalid_argument(operation)
            .object(file + ", tensor " + config::printable(tensor.name))
            .reason("the index does not say that the tensor is in this file")
            .where(index.string())
            .got(found == wanted.end() ? "no such tensor, or one that two files have" : found->second)
            .advice("download index and files of one revision");
      }
      wanted.erase(found);
    }
    read.push_back({path, std::move(header)});
  }
  if (wanted.empty()) return read;
  return Error::invalid_argument(operation)
      .object(index.string())
      .reason("a file lacks tensors that the index says it has")
      .wanted(config::printable(wanted.begin()->first) + " in " + wanted.begin()->second)
      .got(std::to_string(wanted.size()) + " tensors are missing")
      .advice("download index and files of one revision");
}

Result<std::vector<CheckpointFile>> read_directory(const fs::path& directory, const std::string& stem) {
  std::error_code error;
  const fs::path index = directory / (stem + ".safetensors.index.json"),
                 file = directory / (stem + ".safetensors");
  if (fs::exists(index, error) || fs::exists(file, error)) {
    return read_checkpoint_headers(fs::exists(index, error) ? index : file, stem);
  }
  return Error(ErrorCode::not_found, operation)
      .object(directory.string())
      .reason("the directory has no such file")
      .wanted(index.filename().string() + " or " + file.filename().string())
      .advice("give the file itself");
}

}  // namespace

bool is_checkpoint(const fs::path& path) {
  std::error_code error;
  return ends_with(path, ".safetensors") || ends_with(path, ".safetensors.index.json") ||
         fs::is_directory(path, error);
}

Result<std::vector<CheckpointFile>> read_checkpoint_headers(const fs::path& path, const std::string& stem) {
  std::error_code error;
  if (fs::is_directory(path, error)) return read_directory(path, stem);
  if (ends_with(path, ".json")) return read_index(path);
  PENSTOCK_TRY_ASSIGN(SafetensorsHeader header, SafetensorsHeader::read(path));
  std::vector<CheckpointFile> read;
  read.push_back({path, std::move(header)});
  return read;
}

}  // namespace penstock::zero::exchange
