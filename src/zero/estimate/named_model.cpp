#include "zero/estimate/named_model.hpp"

#include "zero/config/json_text.hpp"
#include "zero/config/nearest.hpp"
#include "zero/estimate/experts.hpp"
#include "zero/estimate/layout_file.hpp"
#include "zero/estimate/model_presets.hpp"
#include "zero/estimate/tensor_units.hpp"
#include "zero/exchange/checkpoint_files.hpp"

#include <algorithm>
#include <map>

namespace penstock::zero::estimate {

namespace {

Error neither(const std::string& argument) {
  const auto names = preset_names();
  const std::string_view nearest = config::nearest_spelling(argument, names);
  std::string advice = "penstock estimate --presets lists the names";
  if (!nearest.empty()) advice = "did you mean " + std::string(nearest) + "? " + advice;
  return Error::invalid_argument("penstock estimate")
      .reason("the model is neither a preset nor a file")
      .object("--model")
      .wanted("the name of a preset, a .safetensors file, its index, or a layout file")
      .got(config::printable(argument))
      .advice(advice);
}

}  // namespace

Result<NamedModel> NamedModel::load(const std::string& argument) {
  NamedModel model{.name = argument};
  if (const ModelShape* shape = find_preset(argument)) {
    model.name = shape->name;
    model.source = "preset";
    model.layout = layout_of(*shape);
    model.experts_of_token = shape->experts_of_token;
    return model;
  }
  std::error_code error;
  if (argument.find('\0') != argument.npos || !std::filesystem::exists(argument, error))
    return neither(argument);
  if (!exchange::is_checkpoint(argument)) {
    model.source = "layout file";
    PENSTOCK_TRY_ASSIGN(model.layout, LayoutFile::read(argument));
    return model;
  }
  model.source = "safetensors header";
  PENSTOCK_TRY_ASSIGN(const auto files, exchange::read_checkpoint_headers(argument, "model"));
  std::vector<exchange::TensorEntry> tensors;
  for (const exchange::CheckpointFile& file : files)
    tensors.insert(tensors.end(), file.header.tensors.begin(), file.header.tensors.end());
  PENSTOCK_TRY_ASSIGN(model.layout, units_of_tensors(tensors, model.notes));
  return model;
}

Result<ElementCount> NamedModel::used_by_token(std::uint64_t given) {
  const bool mixes = has_experts(layout);
  if (given > 0 && !mixes) {
    return Error::invalid_argument("penstock estimate")
        .object("--experts-per-token")
        .reason("no parameter of the model is of an expert")
        .wanted("names with experts.0., experts.1. and so on, or experts. of three dimensions")
        .got("none")
        .advice("leave it out, or give the experts' parameters such names");
  }
  if (mixes && given == 0 && experts_of_token == 0)
    notes.emplace_back("each token is taken to use all experts; --experts-per-token says how many it does");
  return elements_of_token(layout, given > 0 ? given : experts_of_token);
}

Result<void> NamedModel::use_muon() {
  const auto group = static_cast<std::uint32_t>(layout.groups.size());
  std::size_t matrices = 0;
  ElementCount elements;
  for (UnitLayout& unit : layout.units) {
    for (ParameterLayout& parameter : unit.parameters) {
      if (!is_hidden_matrix(parameter)) continue;
      parameter.group = group;
      ++matrices;
      elements += parameter.count;
    }
  }
  if (matrices == 0) {
    return Error::invalid_argument("NamedModel::use_muon")
        .object(name)
        .reason("the model has no matrices for Muon")
        .wanted("parameters of two dimensions")
        .got("none")
        .advice("give \"shape\" instead of \"count\" in the layout file, or use AdamW");
  }
  layout.groups.push_back({.use_muon = true});
  notes.push_back("Muon updates " + std::to_string(matrices) + " matrices of " + to_string(elements) +
                  " in all; AdamW updates embeddings, the head, and parameters that are not matrices");
  return ok();
}

ElementCount NamedModel::largest_module() const {
  ElementCount largest;
  for (const UnitLayout& unit : layout.units) {
    std::map<std::string_view, ElementCount> modules;
    for (const ParameterLayout& parameter : unit.parameters) {
      const std::string_view whole = parameter.name;
      ElementCount& count = modules[whole.substr(0, std::min(whole.rfind('.'), whole.size()))];
      count += parameter.count;
      largest = std::max(largest, count);
    }
  }
  return largest;
}

}  // namespace penstock::zero::estimate
