#include "zero/report/event_directory.hpp"
#include "zero/report/event_writer.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <ios>
#include <utility>

namespace penstock::zero {

namespace {

/// The fewest digits that are read back unchanged, as Python writes numbers.
std::string shortest_text(double value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

class CsvWriter final : public EventWriter {
 public:
  explicit CsvWriter(std::filesystem::path directory) : directory_(std::move(directory)) {}

  Result<void> write(std::span<const MonitorEvent> events) override {
    for (const MonitorEvent& event : events) {
      std::string name = event.name;
      std::replace(name.begin(), name.end(), '/', '_');
      std::replace(name.begin(), name.end(), ' ', '_');
      const std::filesystem::path file = directory_ / (name + ".csv");
      errno = 0;
      std::ofstream stream(file, std::ios::binary | std::ios::app | std::ios::ate);
      if (stream.tellp() == std::streampos(0))
        stream << "step," << quoted(event.name.substr(event.name.rfind('/') + 1)) << "\r\n";
      stream << event.place << ',' << shortest_text(event.value) << "\r\n";
      stream.close();
      if (!stream) return Error::from_errno("csv_monitor", errno == 0 ? EIO : errno).object(file.string());
    }
    return ok();
  }

 private:
  /// RFC 4180.
  static std::string quoted(const std::string& text) {
    if (text.find_first_of(",\"") == text.npos) return text;
    std::string field = "\"";
    for (const char c : text) field += c == '"' ? std::string("\"\"") : std::string(1, c);
    return field + '"';
  }

  const std::filesystem::path directory_;
};

}  // namespace

Result<std::unique_ptr<EventWriter>> make_csv_writer(const MonitorConfig& monitor) {
  PENSTOCK_TRY_ASSIGN(auto directory, make_event_directory(monitor, "csv_monitor"));
  return std::unique_ptr<EventWriter>(std::make_unique<CsvWriter>(std::move(directory)));
}

}  // namespace penstock::zero
