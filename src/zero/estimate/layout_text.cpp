#include "zero/estimate/layout_file.hpp"

#include <json/json.h>

namespace penstock::zero::estimate {

namespace {

Json::Value json_of(const ParameterLayout& parameter) {
  Json::Value json;
  json["name"] = parameter.name;
  if (parameter.shape.empty()) json["count"] = Json::UInt64{parameter.count.value()};
  for (const std::uint64_t length : parameter.shape) json["shape"].append(Json::UInt64{length});
  if (parameter.group != 0) json["group"] = parameter.group;
  return json;
}

}  // namespace

std::string LayoutFile::text(const ModelLayout& model) {
  Json::Value root;
  for (const UnitLayout& unit : model.units) {
    Json::Value& json = root["units"].append(Json::objectValue);
    json["name"] = unit.name;
    for (const ParameterLayout& parameter : unit.parameters) json["parameters"].append(json_of(parameter));
    for (const ParameterId& id : unit.shared) {
      Json::Value& shared = json["shared"].append(Json::objectValue);
      shared["unit"] = model.units[id.unit].name;
      shared["parameter"] = model.parameter(id).name;
    }
  }
  if (const CheckpointLayout& checkpoints = model.checkpoints; checkpoints.count > 0) {
    Json::Value& json = root["checkpoints"];
    json["count"] = checkpoints.count;
    json["size"] = Json::UInt64{checkpoints.size.value()};
    json["leased_max"] = checkpoints.leased_max;
    json["reads"] = checkpoints.reads;
  }
  Json::StreamWriterBuilder writer;
  writer["indentation"] = "";
  writer["emitUTF8"] = true;
  return Json::writeString(writer, root);
}

}  // namespace penstock::zero::estimate
