"""The windowing core, without driver or Spark, against loops by hand and other libraries: one comparison a shape and way in."""
