#pragma once

#include <json/json.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace penstock::test {

inline std::string contents(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

inline Json::Value parse(const std::string& text) {
  std::istringstream stream(text);
  Json::Value json;
  stream >> json;
  return json;
}

struct TimelineEvent {
  std::string name;
  double begin, end;  // microseconds
};
/// The events of a timeline, by the name of their row.
inline std::map<std::string, std::vector<TimelineEvent>> rows_of(const Json::Value& events) {
  std::map<int, std::string> names;
  std::map<std::string, std::vector<TimelineEvent>> rows;
  for (const Json::Value& event : events) {
    if (event["name"] == "thread_name") names[event["tid"].asInt()] = event["args"]["name"].asString();
  }
  for (const Json::Value& event : events) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"].asDouble();
    rows[names.at(event["tid"].asInt())].push_back(
        {event["name"].asString(), begin, begin + event["dur"].asDouble()});
  }
  return rows;
}
inline std::map<std::string, std::vector<TimelineEvent>> rows_of(const std::filesystem::path& file) {
  return rows_of(parse(contents(file)));
}

}  // namespace penstock::test
