//! Text for people: findings, causes, numbers and dates, and text from outside made safe to show.

pub mod cards;
pub mod date;
pub mod humanize;
pub mod sanitize;
