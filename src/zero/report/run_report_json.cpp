#include "zero/config/json_text.hpp"

#include <penstock/zero/report/run_report.hpp>

#include <json/json.h>
#include <chrono>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::zero {

namespace {

Json::Value json_of(ByteCount bytes) {
  return Json::Value(static_cast<Json::UInt64>(bytes.value()));
}
Json::Value json_of(TimePoint time) {
  return {std::chrono::duration<double>(time).count()};
}
Json::Value json_of(std::string_view text) {
  return {std::string(text)};
}

/// null, where it is not known.
Json::Value known(bool is_known, Json::Value value) {
  return is_known ? std::move(value) : Json::Value();
}

Json::Value json_of(const RunReport::Memory& memory) {
  Json::Value json;
  json["tier"] = json_of(to_string(memory.tier));
  json["purpose"] = json_of(to_string(memory.purpose));
  json["predicted"] = json_of(memory.predicted);
  json["peak"] = json_of(memory.peak);
  json["held"] = json_of(memory.held);
  return json;
}
Json::Value json_of(const RunReport::Stall& stall) {
  Json::Value json;
  json["cause"] = json_of(to_string(stall.cause));
  json["time"] = json_of(stall.time);
  return json;
}
Json::Value json_of(const RunReport::Change& change) {
  Json::Value json;
  json["what"] = json_of(change.what);
  json["saves"] = std::isfinite(change.saves) ? change.saves : 0.0;  // JSON has no others
  return json;
}
Json::Value json_of(const RunReport::StepTraffic& traffic) {
  Json::Value json;
  json["read"] = json_of(traffic.read);
  json["written"] = json_of(traffic.written);
  return json;
}
Json::Value json_of(const RunReport::Traffic& traffic, bool is_predicted) {
  Json::Value json;
  json["purpose"] = json_of(to_string(traffic.purpose));
  json["read"] = json_of(traffic.read);
  json["predicted_read"] = json_of(traffic.predicted_read);
  json["written"] = json_of(traffic.written);
  json["predicted_written"] = json_of(traffic.predicted_written);
  json["step"] = json_of(traffic.step);
  json["predicted_step"] = known(is_predicted, json_of(traffic.predicted_step));
  return json;
}
Json::Value json_of(const RunReport::DriveStep& step) {
  Json::Value json;
  json["read"] = json_of(step.read);
  json["written"] = json_of(step.written);
  json["busy"] = json_of(step.busy);
  return json;
}
Json::Value json_of(const RunReport::Drive& drive, TimePoint elapsed, bool is_predicted) {
  Json::Value json;
  json["directory"] = drive.directory;
  json["engine"] = drive.engine;
  json["read"] = json_of(drive.read);
  json["written"] = json_of(drive.written);
  json["requests"] = static_cast<Json::UInt64>(drive.requests);
  json["repeated"] = static_cast<Json::UInt64>(drive.repeated);
  json["latency_99"] = json_of(drive.latency_99);
  json["busy"] = json_of(drive.busy);
  const double share = drive.share_of_limit(elapsed);
  const bool has_limit = drive.limit > 0 && std::isfinite(drive.limit);
  json["limit"] = known(has_limit, drive.limit);
  json["share_of_limit"] = known(has_limit && std::isfinite(share), share);
  json["endurance"] = known(!drive.endurance.is_zero(), json_of(drive.endurance));
  json["step"] = json_of(drive.step);
  json["predicted_step"] = known(is_predicted, json_of(drive.predicted_step));
  return json;
}

template <class Item>
Json::Value json_of(const std::vector<Item>& items) {
  Json::Value json(Json::arrayValue);
  for (const Item& item : items) json.append(json_of(item));
  return json;
}

}  // namespace

std::string to_json(const RunReport& report) {
  Json::Value json;
  json["rank"] = report.rank;
  json["steps"] = static_cast<Json::UInt64>(report.steps);
  json["elapsed"] = json_of(report.elapsed);
  json["step"] = json_of(report.step);
  const bool is_predicted = report.predicted_step_traffic != RunReport::StepTraffic();
  json["predicted_step"] = known(report.predicted_step > TimePoint(), json_of(report.predicted_step));
  json["step_traffic"] = json_of(report.step_traffic);
  json["predicted_step_traffic"] = known(is_predicted, json_of(report.predicted_step_traffic));
  json["stalled"] = json_of(report.stalled);
  json["resident_peak"] = json_of(report.resident_peak);
  json["stalls"] = json_of(report.stalls);
  json["memory"] = json_of(report.memory);
  json["traffic"] = Json::Value(Json::arrayValue);
  for (const RunReport::Traffic& traffic : report.traffic)
    json["traffic"].append(json_of(traffic, is_predicted));
  json["drives"] = Json::Value(Json::arrayValue);
  for (const RunReport::Drive& drive : report.drives)
    json["drives"].append(json_of(drive, report.elapsed, is_predicted));
  json["changes"] = json_of(report.changes);
  json["changes_note"] = json_of(report.changes_note);
  return config::write_json(json);
}

}  // namespace penstock::zero
